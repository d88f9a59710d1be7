package shards

import "context"

// A runContext is the context of a run. It has the values of Run's context, carries the hold of the
// shard's lock, and, as that does, looks at the clock when it is asked for its error: after a pause
// of the process no timer has run yet.
type runContext struct {
	context.Context // ends with the hold, and when stop is called
	held            context.Context
	values          context.Context
	stop            context.CancelCauseFunc
}

func newRunContext(held, values context.Context) *runContext {
	c := &runContext{held: held, values: values}
	c.Context, c.stop = context.WithCancelCause(held)
	return c
}

// Err says whether the context is over.
func (c *runContext) Err() error {
	if c.Context.Err() == nil && c.held.Err() != nil {
		c.stop(context.Cause(c.held))
	}
	return c.Context.Err()
}

// Value returns what the hold's context has, which knows no other owner, or else what Run's has.
func (c *runContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

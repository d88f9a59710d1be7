package shards

import "context"

// A runContext is the context of a run. It carries the values of Run's context, and the hold of the
// shard's lock. Like the hold's context, it checks the clock in Err, since after a pause of the
// process the timers might not have run yet.
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

// Err returns an error if the context has ended.
func (c *runContext) Err() error {
	if c.Context.Err() == nil && c.held.Err() != nil {
		c.stop(context.Cause(c.held))
	}
	return c.Context.Err()
}

// Value returns the value in the hold's context or, if that has none, in Run's context. So calls
// with this context act as the owner of the hold, even if Run's context names an owner.
func (c *runContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.values.Value(key)
}

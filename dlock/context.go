package dlock

import (
	"context"
	"errors"
)

// withCancelCause is like [context.WithCancelCause], but canceling the result never hangs, even if
// a method of the caller's context does.
func withCancelCause(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	if ctx.Done() != nil {
		ctx = gate{ctx, ctx.Value(cancelKey)}
	}
	return context.WithCancelCause(ctx)
}

// A gate wraps a caller's context, so that canceling a child of the gate doesn't call the caller's
// code. To cancel a context, package context asks its parent for one value. The gate has fetched
// that value in advance.
type gate struct {
	context.Context
	parent any // the value for cancelKey
}

func (g gate) Value(key any) any {
	if key == cancelKey {
		return g.parent
	}
	return g.Context.Value(key)
}

// cancelKey is the key of the value that package context gets from the parent when a context is
// canceled. The key isn't exported, so a probe discovers it.
var cancelKey = func() any {
	never, stop := context.WithCancel(context.Background())
	defer stop()
	p := &probe{Context: never}
	_, cancel := context.WithCancel(p)
	cancel()
	return p.asked
}()

// A probe is a context that records the last key it was asked for.
type probe struct {
	context.Context
	asked any
}

func (p *probe) Value(key any) any {
	p.asked = key
	return nil
}

// ended returns the error of ctx, together with its cause if that is different.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return cause
	}
	return both(err, cause)
}

package dlock

import (
	"context"
	"errors"
)

// withCancelCause is [context.WithCancelCause] for contexts that any goroutine may cancel. A cancel
// doesn't hang even if a method of the caller's context hangs.
func withCancelCause(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	if ctx.Done() != nil {
		ctx = gate{ctx, ctx.Value(cancelKey)}
	}
	return context.WithCancelCause(ctx)
}

// A gate wraps a caller's context. A context that is canceled asks its parent for one value. The
// gate has already asked the caller's context for that value, so a cancel doesn't call the caller's
// context.
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

// cancelKey is the key of the value that a cancel asks for. Package context doesn't export it, so a
// probe finds it.
var cancelKey = func() any {
	never, stop := context.WithCancel(context.Background())
	defer stop()
	p := &probe{Context: never}
	_, cancel := context.WithCancel(p)
	cancel()
	return p.asked
}()

// A probe records the last key that it was asked for.
type probe struct {
	context.Context
	asked any
}

func (p *probe) Value(key any) any {
	p.asked = key
	return nil
}

// ended returns how ctx has ended: its error and, if different, its cause.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || errors.Is(cause, err) {
		return cause
	}
	return both(err, cause)
}

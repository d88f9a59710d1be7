package steps

import (
	"context"
	"sync/atomic"
	"time"
)

// Limits on how long a caller waits for a step. Between them, it waits for as long as the lease
// lasts. There is a minimum because a slow store might need longer than a short lease to refuse a
// request, and a maximum so that a step doesn't hang for the whole of a very long lease.
const (
	Shortest = time.Second
	Longest  = 30 * time.Second
)

// About returns how long a caller waits for a step that concerns a lease of the given length.
func About(lease time.Duration) time.Duration { return min(max(lease, Shortest), Longest) }

// A Patience makes contexts that end after a certain time, with cause ErrUnanswered. Calls that
// begin at about the same time share a context and its timer.
type Patience struct {
	store  *Store
	d      time.Duration
	latest atomic.Pointer[shared]
}

// Patience returns a Patience whose contexts end after d.
func (s *Store) Patience(d time.Duration) *Patience { return &Patience{store: s, d: d} }

// shared is a context of a Patience.
type shared struct {
	context.Context
	untilEnd context.Context // done when this context is done, or when End is called
	end      time.Time
}

// Context returns a context that ends after the duration given to [Store.Patience], or up to an
// eighth of it earlier.
func (p *Patience) Context() context.Context { return p.context() }

func (p *Patience) context() *shared {
	end := time.Now().Add(p.d)
	if s := p.latest.Load(); s != nil && !s.end.Before(end.Add(-p.d/8)) {
		return s
	}
	forAll, endForAll := context.WithCancelCause(context.Background())
	untilEnd, endUntilEnd := context.WithCancelCause(p.store.ctx)
	time.AfterFunc(p.d, func() {
		endForAll(ErrUnanswered)
		endUntilEnd(ErrUnanswered)
	})
	s := &shared{forAll, untilEnd, end}
	p.latest.Store(s)
	return s
}

// bounded returns a context for a step. It ends when ctx ends or End is called. Unless d is 0, it
// also ends after d.
func (s *Store) bounded(ctx context.Context, d time.Duration) (context.Context, func()) {
	if end, ok := ctx.Deadline(); d == 0 || ok && time.Until(end) <= d {
		return s.UntilEnd(ctx)
	}
	if _, ok := ctx.(*shared); ok {
		return s.UntilEnd(ctx) // ctx ends in time
	}
	if ctx.Done() == nil && d == s.patience.d {
		p := s.patience.context()
		if ctx == context.Background() {
			return p.untilEnd, func() {}
		}
		return withValues{p.untilEnd, ctx}, func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// UntilEnd returns a context that ends when ctx ends or End is called. Call stop when the context
// is no longer needed.
func (s *Store) UntilEnd(ctx context.Context) (until context.Context, stop func()) {
	if p, ok := ctx.(*shared); ok {
		return p.untilEnd, func() {}
	}
	switch {
	case ctx == context.Background():
		return s.ctx, func() {}
	case ctx.Done() == nil:
		return withValues{s.ctx, ctx}, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopping := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stopping(); cancel() }
}

// withValues is a context that takes its values from a caller's context.
type withValues struct {
	context.Context
	caller context.Context
}

func (c withValues) Value(key any) any {
	if v := c.caller.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// Pause waits for d. It returns false if ctx ended or End was called before that.
func (s *Store) Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return false
}

// Package steps sends requests to a store. Each request is called a step. A caller gets the answer
// to its step, or stops waiting when its time is up, even if the store or the store's client hangs.
// The package knows nothing about locks or holds.
package steps

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// ErrUnanswered says that the caller of a step stopped waiting before the answer came, so it is
// unknown whether the step was carried out.
var ErrUnanswered = errors.New("the store has not answered")

// A Store is a session with a store. Its methods are safe for concurrent use.
type Store struct {
	backend.Capabilities
	Session backend.Session
	Limits  backend.Limits
	Name    string // in errors

	// Observe, if not nil, is called after each step, with the context and request of the step. It
	// must be set before the first step.
	Observe func(ctx context.Context, req any, took time.Duration, err error)

	patience *Patience // for steps that concern a lease of the usual length
	ctx      context.Context
	cancel   context.CancelCauseFunc

	mu      sync.Mutex
	ended   error          // why later steps are refused
	running sync.WaitGroup // steps and other goroutines
}

// Open opens a session with b. lease is the usual lease of the locks.
func Open(b backend.Backend, lease time.Duration) *Store {
	s := &Store{Limits: b.Limits(), Name: fmt.Sprintf("%T", b)}
	if named, ok := b.(fmt.Stringer); ok {
		s.Name = named.String()
	}
	s.Session, s.Capabilities = backend.Open(b)
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.patience = s.Patience(About(lease))
	return s
}

// Context returns a context that ends when End is called.
func (s *Store) Context() context.Context { return s.ctx }

// Prompt reports whether the steps of the store never wait. Callers of such steps can't stop
// waiting early, and don't need to.
func (s *Store) Prompt() bool { return s.Steps == backend.StepsNeverWait }

// Go runs f in a goroutine that Wait waits for. After Refuse or End it does nothing.
func (s *Store) Go(f func()) {
	if s.begin() == nil {
		go func() {
			defer s.running.Done()
			f()
		}()
	}
}

// Refuse makes all later steps fail, except those taken with Last. The error of such a step wraps
// the given error.
func (s *Store) Refuse(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = why
}

// End refuses later steps, and ends all steps that are under way.
func (s *Store) End(why error) {
	s.Refuse(why)
	s.cancel(why)
}

// Wait waits for all steps and goroutines, including those that the store's client has left
// running. Call it after End, once the session is closed.
func (s *Store) Wait() {
	s.running.Wait()
	if s.Settle != nil {
		s.Settle()
	}
}

// begin registers a step or a goroutine that is about to start, so that Wait waits for it. After
// Refuse or End, begin returns an error instead.
func (s *Store) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return &backend.Error{Kind: backend.Retry, Err: s.ended}
	}
	s.running.Add(1)
	return nil
}

// A Step is a function that sends one kind of request in a session, and returns the answer.
type Step[Req, Res any] = func(backend.Session, context.Context, Req) (Res, error)

// Of returns a Step that calls do, which is a method of one of the session's capabilities.
func Of[Req, Res any](do func(context.Context, Req) (Res, error)) Step[Req, Res] {
	return func(_ backend.Session, ctx context.Context, req Req) (Res, error) {
		return do(ctx, req)
	}
}

// Do is like DoWithin, with the patience for a lease of the usual length, and without a function
// for late answers.
func Do[Req, Res any](ctx context.Context, s *Store, do Step[Req, Res], req Req) (Res, error) {
	return DoWithin(ctx, s, s.patience.d, nil, do, req)
}

// DoWithin takes a step. It stops waiting for the answer when ctx ends, when the step has taken
// longer than patience, or when End is called. Its error is then ErrUnanswered, unless the step has
// returned an error of its own. A patience of 0 means no limit. If late isn't nil, it is called
// with an answer that comes too late. With a prompt store, DoWithin always waits for the answer.
func DoWithin[Req, Res any](
	ctx context.Context, s *Store, patience time.Duration, late func(Res, error),
	do Step[Req, Res], req Req,
) (Res, error) {
	if s.Observe == nil {
		return unobserved(ctx, s, patience, late, do, req)
	}
	began := time.Now()
	res, err := unobserved(ctx, s, patience, late, do, req)
	s.Observe(ctx, req, time.Since(began), err)
	return res, err
}

func unobserved[Req, Res any](
	ctx context.Context, s *Store, patience time.Duration, late func(Res, error),
	do Step[Req, Res], req Req,
) (Res, error) {
	if s.Prompt() {
		return do(s.Session, ctx, req)
	}
	if err := s.begin(); err != nil {
		var none Res
		return none, err
	}
	ctx, stop := s.bounded(ctx, patience)
	defer stop()
	if s.Steps == backend.StepsReturn {
		defer s.running.Done()
		return here(ctx, s, do, req)
	}
	return aside(ctx, s, s.running.Done, late, do, req)
}

// Last takes a step, even after End. It stops waiting for the answer when ctx ends. Wait doesn't
// wait for such a step.
func Last[Req, Res any](ctx context.Context, s *Store, do Step[Req, Res], req Req) (Res, error) {
	if s.Steps == backend.StepsReturn {
		return here(ctx, s, do, req)
	}
	return aside(ctx, s, func() {}, nil, do, req)
}

// here takes a step in the caller's goroutine. It is for stores whose steps return when their
// context ends.
func here[Req, Res any](ctx context.Context, s *Store, do Step[Req, Res], req Req) (Res, error) {
	res, err := do(s.Session, ctx, req)
	return res, unanswered(ctx, err)
}

// unanswered returns the error of a step. It replaces the error of ctx with ErrUnanswered, because
// the caller already knows that ctx has ended.
func unanswered(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return &backend.Error{Kind: backend.KindOf(err), Err: ErrUnanswered}
	}
	return err
}

// aside takes a step in a goroutine, which calls done when the step has ended. If ctx ends before
// the answer comes, aside returns ErrUnanswered. The later answer is then passed to late, unless
// late is nil.
func aside[Req, Res any](
	ctx context.Context, s *Store, done func(), late func(Res, error), do Step[Req, Res], req Req,
) (Res, error) {
	type answer struct {
		res Res
		err error
	}
	answers, left := make(chan answer, 1), new(atomic.Bool)
	go func() {
		defer done()
		res, err := do(s.Session, ctx, req)
		answers <- answer{res, err}
		if late != nil && left.Load() {
			select {
			case a := <-answers: // the caller has stopped waiting for it
				late(a.res, a.err)
			default:
			}
		}
	}()
	select {
	case a := <-answers:
		return a.res, unanswered(ctx, a.err)
	case <-ctx.Done():
	}
	left.Store(true)
	select {
	case a := <-answers:
		return a.res, unanswered(ctx, a.err)
	default:
		var none Res
		return none, ErrUnanswered
	}
}

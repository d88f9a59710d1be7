package dlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed951563bd/distsync/backend"
)

// Semaphore is a distributed semaphore: a number of permits, shared by any number of holders in any
// number of processes. Each acquires as many as it needs at once, or none, and holds them with a
// lease that is renewed. The permits of a crashed process come back when its lease runs out.
//
// Inside a client it is first come, first served, as with golang.org/x/sync/semaphore: a call for
// many isn't overtaken by calls for few. Across clients it may be. A Hold that is released passes
// to the first waiter of its client, if that wants as many permits, for up to the hand-over time
// (see [WithHandover]), without asking the store.
//
// Each call says how many permits there are: a call with 10 gets some if no more than 10 are taken
// then, with its own. So a deployment may change the number. While both versions run, the larger
// number is the bound, and calls with the smaller one may wait that long. On Redis and Valkey it is
// a Redisson RPermitExpirableSemaphore, which Java programs may share.
//
// Permits end when their holder gives them back, with their lease, or by [Semaphore.ForceRelease].
//
// Making a Semaphore is cheap and does no I/O. It is safe for concurrent use, and must not be
// copied.
type Semaphore struct {
	locker  Locker
	permits int
}

// Semaphore returns a semaphore of that name with so many permits. With 0 there are as many as the
// store was told last, for a semaphore that a Java program has set up. Memory and etcd forget that
// number when no permit is taken; Redis and Valkey keep it. Semaphore panics if permits is
// negative. If the store has no semaphores, every error wraps [errors.ErrUnsupported].
func (c *Client) Semaphore(name string, permits int) *Semaphore {
	if permits < 0 {
		panic(fmt.Sprintf("dlock: a Semaphore with %d permits", permits))
	}
	s := &Semaphore{permits: permits}
	s.locker.make(c, backend.Permits, name)
	return s
}

// Acquire waits for n permits, as long as ctx and [Wait] allow, and returns them as a Hold, whose
// Release gives them all back. They are renewed until then, unless [FixedLease] is given. Every
// call acquires its own permits, whatever ctx holds: a call that wants more while its goroutine
// holds some may wait forever.
//
// With Wait(0) there is one attempt, which also fails if others of the client wait. Errors are
// those of [Locker.LockContext]; [ErrHeld] means that too few permits were left. [ErrTooMany] comes
// at once if there aren't so many permits, and [ErrNoLimit] if their number is unknown. An n below
// 1 is an error. A store may have its own bound for n: [ErrUnavailable].
func (s *Semaphore) Acquire(ctx context.Context, n int, opts ...AcquireOption) (*Hold, error) {
	l := s.mustBeMade()
	got, err := s.enter(ctx, n, opts)
	if err != nil {
		return nil, l.wrap("acquire", err)
	}
	return newHandle(got), nil
}

// Do acquires n permits as [Semaphore.Acquire] does, calls fn with the context of the hold (see
// [Hold.Context]), and gives them back, also when fn panics or ends its goroutine. It returns what
// [Locker.Do] would.
func (s *Semaphore) Do(ctx context.Context, n int, fn func(context.Context) error, opts ...AcquireOption) error {
	l := s.mustBeMade()
	if fn == nil {
		return l.wrap("do", errNoFunction)
	}
	got, err := s.enter(ctx, n, opts)
	if err != nil {
		return l.wrap("do", err)
	}
	return got.run(fn)
}

// Available asks the store how many permits can be had now, in one round trip. Permits that are
// handed over inside a client count as taken, and so do those of a dead process until its lease is
// over. The result is never negative, even if more are taken than this Semaphore has. Errors are
// those of [Locker.IsLocked], and [ErrNoLimit].
func (s *Semaphore) Available(ctx context.Context) (int, error) {
	l := s.mustBeMade()
	res, err := l.lookFor(ctx, backend.LookRequest{Kind: l.kind, Name: l.name, Limit: s.permits})
	return res.Available, l.wrap("available", err)
}

// Name returns the semaphore's name.
func (s *Semaphore) Name() string { return s.mustBeMade().name }

// nobody is the party of all who have permits: they are told apart by what they have.
var nobody party = Owner{}

// enter acquires permits for somebody of its own.
func (s *Semaphore) enter(ctx context.Context, n int, opts []AcquireOption) (stay, error) {
	switch {
	case n < 1:
		return stay{}, fmt.Errorf("%d permits: %w", n, errTooFew)
	case s.permits > 0 && n > s.permits:
		return stay{}, fmt.Errorf("%d permits of %d: %w", n, s.permits, ErrTooMany)
	}
	return s.locker.enterAs(ctx, caller{party: nobody, alone: true}, acquireOptions{permits: n, limit: s.permits}, opts)
}

func (s *Semaphore) mustBeMade() *Locker {
	if s == nil || s.locker.client == nil {
		panic("dlock: a Semaphore that is nil, or wasn't made by a Client")
	}
	return &s.locker
}

var (
	errNoFunction = errors.New("the function is nil")
	errTooFew     = errors.New("less than one")
)

package dlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// Semaphore is a distributed semaphore. It has a number of permits, shared by any number of holders
// in any number of processes. A call acquires all permits that it asks for, or none, and holds them
// with a lease that is renewed. The permits of a crashed process become free when its lease runs
// out.
//
// Within a client, calls are served in order of arrival, as with golang.org/x/sync/semaphore. A
// call for many permits isn't overtaken by calls for few. Calls of other clients can overtake it.
// For up to the hand-over time (see [WithHandover]), released permits pass to the first waiter of
// the same client without a request to the store, if that waiter wants the same number.
//
// Each call states the semaphore's number of permits. If that number is 10, the call succeeds if no
// more than 10 are then taken, including its own. So a deployment may change the number. While the
// old and the new version run, the larger number is the bound, and calls with the smaller number
// might wait until the other version is gone. On Redis and Valkey the semaphore is a Redisson
// RPermitExpirableSemaphore, which Java programs may share.
//
// Permits become free when their holder releases them, when their lease ends, or by
// [Semaphore.ForceRelease].
//
// Making a Semaphore is cheap and does no I/O. It is safe for concurrent use, and must not be
// copied.
type Semaphore struct {
	locker  Locker
	permits int
}

// Semaphore returns a semaphore with the given name and number of permits. If permits is 0, the
// semaphore has the number of permits that the store has recorded. Use that for a semaphore that a
// Java program has set up. In memory and on etcd, the recorded number is forgotten when no permits
// are taken. On Redis and Valkey, it is kept. Semaphore panics if permits is negative. If the store
// doesn't support semaphores, every error wraps [errors.ErrUnsupported].
func (c *Client) Semaphore(name string, permits int) *Semaphore {
	if permits < 0 {
		panic(fmt.Sprintf("dlock: a Semaphore with %d permits", permits))
	}
	s := &Semaphore{permits: permits}
	s.locker.make(c, protocol.Kind(backend.Permits), name)
	return s
}

// Acquire waits for n permits, for as long as ctx and [Wait] allow, and returns them as a Hold,
// whose Release releases them all. They are renewed until then, unless [FixedLease] is given. Every
// call acquires its own permits, even if ctx comes from a hold. So a call that wants more while its
// goroutine holds some might wait forever.
//
// With Wait(0) there is a single attempt, which also fails if other calls of the client are
// waiting. Acquire returns the same errors as [Locker.LockContext]. [ErrHeld] means that too few
// permits were left. The call fails at once with [ErrTooMany] if the semaphore has fewer than n
// permits, and with [ErrNoLimit] if their number is unknown. An n below 1 is an error. If n exceeds
// the store's own limit, the error is [ErrUnavailable].
func (s *Semaphore) Acquire(ctx context.Context, n int, opts ...AcquireOption) (*Hold, error) {
	l := s.mustBeMade()
	got, err := s.enter(ctx, n, opts)
	if err != nil {
		return nil, l.wrap("acquire", err)
	}
	return newHandle(got), nil
}

// Do acquires n permits as [Semaphore.Acquire] does, calls fn with the context of the hold (see
// [Hold.Context]), and releases them, even if fn panics or ends its goroutine. Do returns the same
// errors as [Locker.Do].
func (s *Semaphore) Do(
	ctx context.Context, n int, fn func(context.Context) error, opts ...AcquireOption,
) error {
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

// Available asks the store how many permits are free, in one round trip. Permits that are handed
// over inside a client count as taken. The permits of a dead process count as taken until its lease
// has run out. The result is never negative, even if more permits are taken than this Semaphore
// has. Available returns the same errors as [Locker.IsLocked], or [ErrNoLimit].
func (s *Semaphore) Available(ctx context.Context) (int, error) {
	l := s.mustBeMade()
	res, err := l.lookFor(ctx, backend.LookRequest{Kind: backend.Kind(l.kind), Name: l.name,
		Limit: s.permits})
	return res.Available, l.wrap("available", err)
}

// Name returns the semaphore's name.
func (s *Semaphore) Name() string { return s.mustBeMade().name }

// nobody, the zero Owner, is the party of every hold of permits. The party of such a hold doesn't
// matter, since a release finds its permits through the hold.
var nobody party = Owner{}

// enter acquires permits for a new holder.
func (s *Semaphore) enter(ctx context.Context, n int, opts []AcquireOption) (stay, error) {
	switch {
	case n < 1:
		return stay{}, fmt.Errorf("%d permits: %w", n, errTooFew)
	case s.permits > 0 && n > s.permits:
		return stay{}, fmt.Errorf("%d permits of %d: %w", n, s.permits, ErrTooMany)
	}
	return s.locker.enterAs(ctx, caller{party: nobody, alone: true},
		acquireOptions{permits: n, limit: s.permits}, opts)
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

package dlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed951563bd/distsync/backend"
)

// Semaphore is a distributed semaphore: so many permits, which are out with any number of holders in any number of processes.
// Each acquires as many as it needs at once, or none, and holds them with a lease that is renewed: what a
// process had that crashed comes back when that runs out.
//
// Inside a client it is first come, first served, as with golang.org/x/sync/semaphore: who asks for many isn't overtaken by
// those who ask for few. Across clients it may be, by a stream of them. A Hold that is released passes to the first of its
// client who waits, if that asks for as many, for up to the hand-over time, see [WithHandover], without a word to the store.
//
// How many permits there are is what each says for its own calls: one with 10 gets some if no more than 10 are out then, its own
// included, whatever others say. So a deployment may change the number while both versions run: until the old one is gone the larger
// number bounds what is out, and who says the smaller may wait for as long. On Redis and Valkey it is a
// Redisson RPermitExpirableSemaphore, which Java programs may share.
//
// Permits are given back by whoever has them, or end with their lease; [Semaphore.ForceRelease] takes them from everybody.
//
// Making a Semaphore is cheap and does no I/O. It is safe for concurrent use, and must not be copied.
type Semaphore struct {
	locker  Locker
	permits int
}

// Semaphore returns a semaphore of that name with so many permits. With 0 there are as many as the store has been told
// of last, by whomever: for one that a Java program has set up. A store may forget that when no permit is out, as memory and etcd
// do, and Redis and Valkey don't. It panics if permits is negative, as
// [time.NewTicker] does. A store that has no semaphores answers every call with an error that wraps [errors.ErrUnsupported].
func (c *Client) Semaphore(name string, permits int) *Semaphore {
	if permits < 0 {
		panic(fmt.Sprintf("dlock: a Semaphore with %d permits", permits))
	}
	s := &Semaphore{permits: permits}
	s.locker.make(c, backend.Permits, name)
	return s
}

// Acquire waits for n permits, as long as ctx and [Wait] allow, and returns them as a Hold, whose Release gives them all
// back. They are renewed until then, unless [FixedLease] is given. Every call acquires permits of its own, whatever ctx holds,
// also that of another hold of this semaphore: who waits for more while holding some may wait for itself.
//
// With Wait(0) it is one attempt, which also fails if others of the client wait. Errors are those of
// [Locker.LockContext]; [ErrTooMany], at once, if there aren't so many permits; [ErrNoLimit] if nobody has said how many there are; and
// one that says so if n is less than 1. Where [ErrHeld] is spoken of, too few were left, whoever has the others. A store may have a bound for
// n beside, and refuse more: [ErrUnavailable].
func (s *Semaphore) Acquire(ctx context.Context, n int, opts ...AcquireOption) (*Hold, error) {
	l := s.mustBeMade()
	got, err := s.enter(ctx, n, opts)
	if err != nil {
		return nil, l.wrap("acquire", err)
	}
	return newHandle(got), nil
}

// Do acquires n permits as [Semaphore.Acquire] does, calls fn with the context of the hold, see [Hold.Context], and gives them
// back, also when fn panics or ends its goroutine. What it returns is as in [Locker.Do].
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

// Available asks the store how many permits can be had now: one round trip. Those that pass from one to another in a client are
// out all the while, and so are those of a process that died, until their lease is over. It is never negative, though more may be out than this Semaphore has. Errors are those of
// [Locker.IsLocked], and [ErrNoLimit].
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

package certmagiclock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/seed951563bd/distsync/dlock"
)

// prefix is what the names of locks begin with, since other things in the store may be called like a domain.
const prefix = "certmagic:"

// patience bounds an attempt that no context bounds.
const patience = 5 * time.Second

var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
)

// A Storage is a certmagic.Storage whose locks are those of a [dlock.Client]. They are called
// "certmagic:" and certmagic's name. The storage that it wraps does everything else. It is safe for
// concurrent use.
//
// Any goroutine may lock and unlock a name. A locked name stays shut for this Storage until it is
// unlocked, even after its lock was lost: otherwise a late unlock would end another goroutine's
// lock.
type Storage struct {
	certmagic.Storage
	client *dlock.Client

	mu    sync.Mutex
	locks map[string]*lock // that somebody has, or waits for
}

// A lock is a name that is locked, or waited for.
type lock struct {
	turn  chan struct{} // full from a lock to its unlock
	users int           // who has it, and those who wait
	hold  *dlock.Hold   // nil while nobody has it
}

// New returns a storage with the locks of a client. It panics if either is nil.
func New(storage certmagic.Storage, client *dlock.Client) *Storage {
	if storage == nil || client == nil {
		panic("certmagiclock: New: the storage or the client is nil")
	}
	return &Storage{Storage: storage, client: client, locks: make(map[string]*lock)}
}

// String says which storage it is; certmagic logs it.
func (s *Storage) String() string { return fmt.Sprintf("%v, with locks of dlock", s.Storage) }

// Lock implements [certmagic.Locker]. It waits as long as ctx allows. If ctx has ended before, it
// still takes a free lock, as certmagic's own storage does. The lock is renewed until it is
// unlocked. Errors are those of [dlock.Locker.Acquire].
func (s *Storage) Lock(ctx context.Context, name string) error {
	if ctx.Err() == nil {
		return s.lock(ctx, name)
	}
	locked, err := s.TryLock(context.WithoutCancel(ctx), name)
	if err == nil && !locked {
		return fmt.Errorf("certmagiclock: lock %q: %w: %w", name, dlock.ErrHeld, context.Cause(ctx))
	}
	return err
}

// TryLock implements [certmagic.TryLocker]: one attempt. False without an error means that another
// has the lock.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := s.lock(ctx, name, dlock.Wait(0))
	if errors.Is(err, dlock.ErrHeld) {
		return false, nil
	}
	return err == nil, err
}

func (s *Storage) lock(ctx context.Context, name string, opts ...dlock.AcquireOption) error {
	l := s.enter(name)
	if err := l.take(ctx, len(opts) == 0); err != nil {
		s.leave(name, l)
		return fmt.Errorf("certmagiclock: lock %q: %w", name, err)
	}
	hold, err := s.acquire(ctx, name, opts...)
	if err != nil {
		<-l.turn
		s.leave(name, l)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.hold = hold
	return nil
}

// acquire gets a lock for a party of its own, whoever ctx names.
func (s *Storage) acquire(ctx context.Context, name string, opts ...dlock.AcquireOption) (*dlock.Hold, error) {
	return s.client.Locker(prefix+name).Acquire(dlock.WithOwner(ctx, dlock.NewOwner()), opts...)
}

// enter counts in one who wants a name.
func (s *Storage) enter(name string) *lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[name]
	if l == nil {
		l = &lock{turn: make(chan struct{}, 1)}
		s.locks[name] = l
	}
	l.users++
	return l
}

func (s *Storage) leave(name string, l *lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(s.locks, name)
	}
}

// take waits until nobody of this Storage has the name, if it is to wait.
func (l *lock) take(ctx context.Context, waits bool) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	default:
	}
	if !waits {
		return dlock.ErrHeld
	}
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", dlock.ErrHeld, context.Cause(ctx))
	}
}

// Unlock implements [certmagic.Locker] and [certmagic.TryLocker]. It works even if ctx has ended.
// Afterwards the name isn't locked by this Storage, whatever the error: one that wraps
// [dlock.ErrNotHeld] if it wasn't locked before, or another if the store hasn't confirmed the
// unlock, which then goes on in the background. A lost lock is no error, since it is free for
// others, as certmagic asks; the client has logged it.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	l, hold := s.give(name)
	if hold == nil {
		return fmt.Errorf("certmagiclock: unlock %q: %w", name, dlock.ErrNotHeld)
	}
	err := hold.Release(ctx)
	<-l.turn
	s.leave(name, l)
	if errors.Is(err, dlock.ErrLost) {
		return nil
	}
	return err
}

// give takes away what has locked a name.
func (s *Storage) give(name string) (*lock, *dlock.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[name]
	if l == nil {
		return nil, nil
	}
	hold := l.hold
	l.hold = nil
	return l, hold
}

// RenewLockLease implements [certmagic.LockLeaseRenewer]. Locks are renewed all the time, so it
// only says whether name is still locked, whatever the duration. If the lock was lost, it makes one
// attempt to take it again: certmagic calls this before it looks whether another has obtained the
// certificate. If that fails the error wraps [dlock.ErrLost], and certmagic tries again later.
func (s *Storage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	s.mu.Lock()
	l := s.locks[name]
	var hold *dlock.Hold
	if l != nil {
		hold = l.hold
	}
	s.mu.Unlock()
	switch {
	case hold == nil:
		return fmt.Errorf("certmagiclock: renew %q: %w", name, dlock.ErrNotHeld)
	case hold.Err() == nil:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	again, err := s.acquire(ctx, name, dlock.Wait(0))
	if err != nil {
		return fmt.Errorf("certmagiclock: renew %q: %w, and not to be had again: %w", name, hold.Err(), err)
	}
	if !s.replace(l, hold, again) {
		again.Release(ctx)
		return fmt.Errorf("certmagiclock: renew %q: %w", name, dlock.ErrNotHeld)
	}
	hold.Release(ctx) // which is lost
	return nil
}

// replace has a lock held by another hold, if it still is by this one.
func (s *Storage) replace(l *lock, hold, by *dlock.Hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.hold != hold {
		return false
	}
	l.hold = by
	return true
}

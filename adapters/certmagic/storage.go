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

// prefix is prepended to certmagic's names, so that they don't clash with other names of locks in
// the store. For example, another program may use a domain as the name of a lock.
const prefix = "certmagic:"

// patience is the timeout of an attempt whose context has no deadline.
const patience = 5 * time.Second

var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
)

// A Storage is a certmagic.Storage that uses the locks of a [dlock.Client]. The name of a lock is
// certmagic's name with the prefix "certmagic:". The wrapped storage does everything else. A
// Storage is safe for concurrent use.
//
// Any goroutine may lock and unlock a name. If the lock of a name is lost, the name still counts as
// locked in this Storage, until it is unlocked. Otherwise another goroutine could lock the name
// meanwhile, and a late unlock would release that lock.
type Storage struct {
	certmagic.Storage
	client *dlock.Client

	mu    sync.Mutex
	locks map[string]*lock // the names locked or waited for
}

// A lock is the state of a name that is locked, or that calls wait to lock.
type lock struct {
	turn  chan struct{} // full while the name is locked
	users int           // calls that hold or await the name
	hold  *dlock.Hold   // nil while the name isn't locked
}

// New returns a Storage that wraps storage and uses the client's locks. It panics if either is nil.
func New(storage certmagic.Storage, client *dlock.Client) *Storage {
	if storage == nil || client == nil {
		panic("certmagiclock: New: the storage or the client is nil")
	}
	return &Storage{Storage: storage, client: client, locks: make(map[string]*lock)}
}

// String describes the storage, for certmagic's log.
func (s *Storage) String() string { return fmt.Sprintf("%v, with locks of dlock", s.Storage) }

// Lock implements [certmagic.Locker]. It waits as long as ctx allows. Even if ctx has already
// ended, Lock acquires the lock if it is free, as certmagic's own storage does. The lock is renewed
// until it is unlocked. Lock returns the same errors as [dlock.Locker.Acquire].
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

// TryLock implements [certmagic.TryLocker] with a single attempt. It returns false and no error if
// the name is already locked.
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

// acquire acquires the lock with a new owner, even if ctx has one.
func (s *Storage) acquire(
	ctx context.Context, name string, opts ...dlock.AcquireOption,
) (*dlock.Hold, error) {
	return s.client.Locker(prefix+name).Acquire(dlock.WithOwner(ctx, dlock.NewOwner()), opts...)
}

// enter returns the state of a name, and counts the caller as one of its users until leave is
// called.
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

// take waits until the name isn't locked by this Storage, and locks it. If waits is false and the
// name is locked, take fails at once.
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
// Afterwards this Storage no longer locks the name, even if Unlock returns an error. That error
// wraps [dlock.ErrNotHeld] if the name wasn't locked before. Any other error means that the store
// hasn't confirmed the unlock, which then continues in the background. A lost lock isn't an error,
// since others can lock the name anyway. The client has logged the loss.
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

// give removes the hold of a locked name, and returns it.
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

// RenewLockLease implements [certmagic.LockLeaseRenewer]. The client renews the locks anyway, so
// RenewLockLease ignores the duration, and only checks whether name is still locked. If the lock
// was lost, it makes one attempt to acquire it again. That is safe, because certmagic calls
// RenewLockLease before it checks whether another replica has obtained the certificate. If the
// attempt fails, the error wraps [dlock.ErrLost], and certmagic tries again later.
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
		return fmt.Errorf("certmagiclock: renew %q: %w, and can't be acquired again: %w", name,
			hold.Err(), err)
	}
	if !s.replace(l, hold, again) {
		again.Release(ctx)
		return fmt.Errorf("certmagiclock: renew %q: %w", name, dlock.ErrNotHeld)
	}
	hold.Release(ctx) // its lock is lost
	return nil
}

// replace replaces the old hold of a lock with a new one, and returns true. It returns false, and
// changes nothing, if the lock's current hold isn't the old one.
func (s *Storage) replace(l *lock, hold, by *dlock.Hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.hold != hold {
		return false
	}
	l.hold = by
	return true
}

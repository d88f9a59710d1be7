package gooselock

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"

	"github.com/pressly/goose/v3/lock"

	"github.com/seed951563bd/distsync/dlock"
)

var (
	_ lock.Locker        = (*Locker)(nil)
	_ lock.SessionLocker = (*Locker)(nil)
)

// A Locker implements goose's lock.Locker, for goose.WithLocker, and its lock.SessionLocker, for
// goose.WithSessionLocker. Both behave the same, since a Locker doesn't use the database. A Locker
// is for one database. Several providers and goroutines may use it.
//
// If its lock is lost, a Locker still counts as locked, until it is unlocked.
type Locker struct {
	client *dlock.Client
	name   string
	turn   chan struct{} // full while the Locker is locked
	hold   atomic.Pointer[dlock.Hold]
}

// New returns a Locker for the client's lock with the given name. It panics if client is nil or the
// name is empty.
func New(client *dlock.Client, name string) *Locker {
	if client == nil || name == "" {
		panic("gooselock: New: the client is nil or the name is empty")
	}
	return &Locker{client: client, name: name, turn: make(chan struct{}, 1)}
}

// Lock implements lock.Locker. It waits as long as ctx allows. It returns the same errors as
// [dlock.Locker.Acquire].
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error { return l.lock(ctx) }

// Unlock implements lock.Locker. It works even if ctx has ended. Afterwards the Locker is unlocked,
// whatever the error. If the lock was lost, the error wraps [dlock.ErrLost]: another replica may
// have migrated at the same time. If the store hasn't confirmed the unlock, the error wraps
// [dlock.ErrUnavailable], and the client repeats the unlock in the background. If the Locker wasn't
// locked, the error wraps [dlock.ErrNotHeld].
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error { return l.unlock(ctx) }

// SessionLock implements lock.SessionLocker, as Lock does.
func (l *Locker) SessionLock(ctx context.Context, _ *sql.Conn) error { return l.lock(ctx) }

// SessionUnlock implements lock.SessionLocker, as Unlock does.
func (l *Locker) SessionUnlock(ctx context.Context, _ *sql.Conn) error { return l.unlock(ctx) }

func (l *Locker) lock(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("gooselock: lock %q: %w: %w", l.name, dlock.ErrHeld, context.Cause(ctx))
	}
	// Each lock gets a new owner, even if ctx has one.
	hold, err := l.client.Locker(l.name).Acquire(dlock.WithOwner(ctx, dlock.NewOwner()))
	if err != nil {
		<-l.turn
		return err
	}
	l.hold.Store(hold)
	return nil
}

func (l *Locker) unlock(ctx context.Context) error {
	hold := l.hold.Swap(nil)
	if hold == nil {
		return fmt.Errorf("gooselock: unlock %q: %w", l.name, dlock.ErrNotHeld)
	}
	err := hold.Release(ctx)
	<-l.turn
	return err
}

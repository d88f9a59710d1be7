package migratelock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/golang-migrate/migrate/v4/database"

	"github.com/seed951563bd/distsync/dlock"
)

// DefaultWait is the default of [WithWait], the longest time that [Driver.Lock] waits. It is less
// than migrate's own timeout, which is 15 s by default.
const DefaultWait = 10 * time.Second

// patience is the timeout of the single attempt that Lock makes if the wait is 0.
const patience = 5 * time.Second

var errClosed = errors.New("the driver is closed")

// A Driver is a database.Driver that uses a lock of a [dlock.Client]. The wrapped driver does
// everything else. A Driver doesn't acquire the wrapped driver's own lock, so it doesn't exclude
// replicas that still use that lock.
type Driver struct {
	database.Driver
	client *dlock.Client
	name   string
	wait   time.Duration
	open   context.Context
	end    context.CancelCauseFunc

	locked atomic.Bool
	hold   atomic.Pointer[dlock.Hold] // nil while the Driver isn't locked
}

// Option configures a [Driver].
type Option func(*Driver)

// WithWait sets how long [Driver.Lock] waits while another client holds the lock or the store
// doesn't answer. It should be a few seconds less than the LockTimeout of the Migrate that uses the
// driver. The default is [DefaultWait]. With 0, Lock makes one attempt, with a timeout of 5 s.
// [New] panics if d is negative.
func WithWait(d time.Duration) Option { return func(dr *Driver) { dr.wait = d } }

// New returns a driver that wraps the given one, and uses the client's lock with the given name. It
// panics if the driver, the client or an option is nil, or if the name is empty.
func New(driver database.Driver, client *dlock.Client, name string, opts ...Option) *Driver {
	if driver == nil || client == nil || name == "" || slices.ContainsFunc(opts, func(
		opt Option,
	) bool {
		return opt == nil
	}) {
		panic("migratelock: New: the driver, the client or an option is nil, or the name is empty")
	}
	d := &Driver{Driver: driver, client: client, name: name, wait: DefaultWait}
	d.open, d.end = context.WithCancelCause(context.Background())
	for _, opt := range opts {
		opt(d)
	}
	if d.wait < 0 {
		panic(fmt.Sprintf("migratelock: New: the wait %v is negative", d.wait))
	}
	return d
}

// Open implements database.Driver. It opens another database with the wrapped driver, and returns a
// Driver for it with the same lock.
func (d *Driver) Open(url string) (database.Driver, error) {
	opened, err := d.Driver.Open(url)
	if err != nil {
		return nil, err
	}
	return New(opened, d.client, d.name, WithWait(d.wait)), nil
}

// Lock implements database.Driver. If another client held the lock during the whole wait, or if
// this Driver is locked already, the error wraps [database.ErrLocked]. If the store didn't answer,
// the error wraps [dlock.ErrUnavailable] instead. If the lock is lost, the Driver still counts as
// locked, until Unlock is called.
func (d *Driver) Lock() error {
	if !d.locked.CompareAndSwap(false, true) {
		return fmt.Errorf("migratelock: lock %q: %w by this driver", d.name, database.ErrLocked)
	}
	ctx := d.open
	if d.wait == 0 { // Wait(0) doesn't bound a hanging store
		bounded, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		ctx = bounded
	}
	hold, err := d.client.Locker(d.name).Acquire(ctx, dlock.Wait(d.wait))
	if err != nil {
		d.locked.Store(false)
		if errors.Is(err, dlock.ErrHeld) {
			return fmt.Errorf("%w: %w", database.ErrLocked, err)
		}
		return err
	}
	d.hold.Store(hold)
	if d.open.Err() != nil {
		d.Unlock() // no effect if Close has unlocked it
		return fmt.Errorf("migratelock: lock %q: %w", d.name, errClosed)
	}
	return nil
}

// Unlock implements database.Driver. It takes 5 s at most. Afterwards the Driver is unlocked,
// whatever the error. If the Driver wasn't locked, the error is [database.ErrNotLocked]. If the
// lock was lost, it wraps [dlock.ErrLost]: another replica may have migrated at the same time. If
// the store hasn't confirmed the unlock, it wraps [dlock.ErrUnavailable], and the client repeats
// the unlock in the background. If Unlock returns an error, Migrate refuses to lock again.
func (d *Driver) Unlock() error {
	hold := d.hold.Swap(nil)
	if hold == nil {
		return database.ErrNotLocked
	}
	err := hold.Release(context.Background())
	d.locked.Store(false)
	return err
}

// Close implements database.Driver. It releases a lock that a Migrate left locked after its
// LockTimeout, and makes a waiting Lock return.
func (d *Driver) Close() error {
	d.end(errClosed)
	err := d.Unlock()
	if err == database.ErrNotLocked {
		err = nil
	}
	return errors.Join(err, d.Driver.Close())
}

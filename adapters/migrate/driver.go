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

// DefaultWait is how long [Driver.Lock] waits at most, unless [WithWait] says otherwise. It is less
// than migrate's own default of 15 s.
const DefaultWait = 10 * time.Second

// patience bounds the single attempt of [WithWait] 0.
const patience = 5 * time.Second

var errClosed = errors.New("the driver is closed")

// A Driver is a database.Driver whose lock is that of a [dlock.Client]. The driver that it wraps
// does everything else, and its own lock isn't taken: replicas that still use that lock aren't
// excluded.
type Driver struct {
	database.Driver
	client *dlock.Client
	name   string
	wait   time.Duration
	open   context.Context
	end    context.CancelCauseFunc

	locked atomic.Bool
	hold   atomic.Pointer[dlock.Hold] // nil but from a Lock to its Unlock
}

// Option configures a [Driver].
type Option func(*Driver)

// WithWait sets how long [Driver.Lock] waits while another has the lock or the store doesn't
// answer. It should be some seconds less than the LockTimeout of the Migrate that uses it. The
// default is [DefaultWait]. With 0 there is one attempt, which takes 5 s at most. [New] panics if
// it is negative.
func WithWait(d time.Duration) Option { return func(dr *Driver) { dr.wait = d } }

// New returns a driver with the lock that a client has by that name. It panics if the driver, the client or an option is nil, or the name is empty.
func New(driver database.Driver, client *dlock.Client, name string, opts ...Option) *Driver {
	if driver == nil || client == nil || name == "" || slices.ContainsFunc(opts, func(opt Option) bool { return opt == nil }) {
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

// Open implements database.Driver: it returns another Driver, with the same lock, around the driver
// that the wrapped one opens.
func (d *Driver) Open(url string) (database.Driver, error) {
	opened, err := d.Driver.Open(url)
	if err != nil {
		return nil, err
	}
	return New(opened, d.client, d.name, WithWait(d.wait)), nil
}

// Lock implements database.Driver. The error wraps [database.ErrLocked] if another had the lock all
// the time, or if this Driver has it already. A locked Driver stays shut until it is unlocked, even
// after its lock was lost. If the store couldn't say, the error wraps [dlock.ErrUnavailable]
// instead.
func (d *Driver) Lock() error {
	if !d.locked.CompareAndSwap(false, true) {
		return fmt.Errorf("migratelock: lock %q: %w by this driver", d.name, database.ErrLocked)
	}
	ctx := d.open
	if d.wait == 0 { // what else doesn't end if the store hangs
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
		d.Unlock() // or Close has done that
		return fmt.Errorf("migratelock: lock %q: %w", d.name, errClosed)
	}
	return nil
}

// Unlock implements database.Driver. It takes 5 s at most. Afterwards the Driver is free, whatever
// the error: [database.ErrNotLocked] if it wasn't locked; one that wraps [dlock.ErrLost] if the
// lock was lost, so that another replica may have migrated at the same time; or
// [dlock.ErrUnavailable] if the store hasn't confirmed the unlock, which then goes on in the
// background. A Migrate that got an error here refuses to lock again.
func (d *Driver) Unlock() error {
	hold := d.hold.Swap(nil)
	if hold == nil {
		return database.ErrNotLocked
	}
	err := hold.Release(context.Background())
	d.locked.Store(false)
	return err
}

// Close implements database.Driver. It gives back a lock that a Migrate left after its LockTimeout,
// and ends a Lock that still waits.
func (d *Driver) Close() error {
	d.end(errClosed)
	err := d.Unlock()
	if err == database.ErrNotLocked {
		err = nil
	}
	return errors.Join(err, d.Driver.Close())
}

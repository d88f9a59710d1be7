package dlock

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// DefaultLease is the lease of locks, unless [WithLease] sets a different one. A lock is renewed
// each time a third of its lease has passed.
const DefaultLease = 30 * time.Second

// Option configures a [Client].
type Option func(*Client) error

// WithLease sets the lease of elections, of [Client.Once], and of locks without [FixedLease] or
// [RenewedLease]. The lease is how long such a lock outlives a holder that crashes, and how long a
// holder that is cut off from the store may rely on the lock. The lease is renewed each time a
// third of it has passed. A lease of several seconds is usually right: it should span many round
// trips, and be much longer than the pauses of a process. The default is [DefaultLease]. The
// minimum is 1 ms, or the store's shortest lease (2 s on etcd) if that is longer. Fractions of a
// millisecond are dropped.
func WithLease(d time.Duration) Option {
	return func(c *Client) error {
		if err := checkLease(d); err != nil {
			return err
		}
		c.lease = d.Truncate(time.Millisecond)
		return nil
	}
}

// DefaultHandover is how long goroutines of a client can hand a lock over without asking the store,
// unless [WithHandover] sets a different limit.
const DefaultHandover = 10 * time.Millisecond

// WithHandover limits how long goroutines of this client may hand a lock over without asking the
// store. If a lock was acquired from the store less than d ago, and is renewed, an unlock passes it
// to the goroutine of this client that has waited longest. That is a thousand times faster than a
// round trip. After d an unlock releases the lock in the store, so that other processes get their
// turn. They might wait for up to d longer. The default is [DefaultHandover]. [New] panics if d is
// negative or more than ten years.
//
// A hand-over relies on the store's last answer. After a [Locker.ForceUnlock] by another client, or
// if the store loses its data, a goroutine can still get the lock until d has passed, even if
// another client holds the lock by then. An unlock that hands the lock over doesn't notice this.
// With 0 nothing is handed over, and every acquisition asks the store.
func WithHandover(d time.Duration) Option {
	return func(c *Client) error {
		switch {
		case d < 0:
			return fmt.Errorf("the hand-over of %v is negative", d)
		case d > longestLease:
			return fmt.Errorf("the hand-over of %v is longer than ten years", d)
		}
		c.handover = d
		return nil
	}
}

// WithClientID sets the client's id, which is the first half of a holder's id in the store. The
// default is unique and says where the client runs: it consists of the host name, the process id
// and 80 random bits, separated by slashes. Any non-empty string will do. Clients with the same id
// still exclude each other.
func WithClientID(id string) Option {
	return func(c *Client) error {
		if id == "" {
			return errors.New("the client id is empty")
		}
		c.id = id
		return nil
	}
}

// WithLogger sets the logger for events that no call can report. These include renewals that fail,
// locks that are lost, and stores that can't be reached while a call waits without a deadline. The
// default is [slog.Default]. One goroutine writes the records, in order, so a slow logger delays
// nothing. If it can't keep up, records are dropped, and their number is logged.
func WithLogger(l *slog.Logger) Option {
	return func(c *Client) error {
		if l == nil {
			return errors.New("the logger is nil")
		}
		c.log.logger = l
		return nil
	}
}

// WithGoroutineOwners makes the calling goroutine the owner of plain calls (those that name no
// [Owner]), as the calling thread is in Java. A goroutine then re-enters the locks that it holds,
// and must unlock them itself. The option is meant for code written for such locks. [WithOwner] is
// clearer, since goroutines have no identity in Go. With this option, each plain call reads a stack
// trace, which takes 2 µs or more. The default is that plain calls belong to the Locker: see
// [Locker].
func WithGoroutineOwners() Option {
	return func(c *Client) error {
		c.goroutineOwners = true
		return nil
	}
}

// WithCallers makes the client record the file and line of each call that acquires a lock or waits
// for one. [Client.Holds], [Client.Waits] and the debug page then show them. Recording takes about
// a microsecond per call. The default is off.
func WithCallers() Option {
	return func(c *Client) error {
		c.callers = new(callers)
		return nil
	}
}

// AcquireOption configures one acquiring call, or all acquiring calls of a Locker: see
// [Locker.With].
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	lease   time.Duration
	given   bool // the lease was given
	fixed   bool // the lease is not renewed
	wait    time.Duration
	bounded bool // the wait was given
	endless bool // wait forever: the call can't return errors
	atLeast time.Duration
	keeps   bool // atLeast was given
	note    string
	noted   bool // the note was given

	permits, limit int // of a semaphore

	site site // of the call
}

// FixedLease sets a fixed lease: the lock isn't renewed, and ends with the lease. The default is a
// renewed lease. If d is less than 1 ms or more than ten years, the call returns an error.
// Fractions of a millisecond are dropped.
//
// If the caller's owner already holds the lock, the call re-enters that hold. If the hold is
// renewed, d is ignored. If the hold has a fixed lease, the hold now lasts for d, or until the end
// of its lease if that is later. If a call without FixedLease re-enters a hold with a fixed lease,
// the hold is renewed until that call's unlock. After that unlock the hold ends when the rest of
// its lease has passed.
//
// If the lease of a plain call (one without an [Owner]) ends, the next plain call of the same
// Locker still waits for the unlock. See [RWLocker.Reader] for plain calls that read. For a lock
// that is never unlocked, use [Locker.Acquire], an [Owner], or a Locker for that one call.
func FixedLease(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.lease, o.given, o.fixed = d, true, true }
}

// Lease is the former name of [FixedLease]. By default there is no fixed lease, and a lock is
// renewed.
//
// Deprecated: Use FixedLease, whose name says that the lock isn't renewed. Lease is equivalent, and
// will be removed after one minor version.
func Lease(d time.Duration) AcquireOption { return FixedLease(d) }

// RenewedLease sets the lease of a single acquisition. The lease is renewed each time a third of d
// has passed, until the unlock. RenewedLease does for one call what [WithLease] does for a client.
// With a short lease, others can acquire the lock soon after its holder has died. A long lease
// outlives an outage of the store, but a loss is noticed later. The lease should span many round
// trips, and be much longer than the pauses of a process. If d is less than 1 ms or more than ten
// years, the call returns an error. Fractions of a millisecond are dropped. If d is less than the
// store's shortest lease (2 s on etcd), the lease is the store's shortest.
//
// The call that acquires a hold sets the lease of the hold. If the caller's owner holds the lock
// already and that hold is renewed, d is ignored. If that hold has a fixed lease, the hold is
// renewed until this call's unlock. Its lease is then d, or the rest of the fixed lease, whichever
// is longer. After the unlock the hold isn't renewed, and ends with its lease. Another call of this
// client is handed the lock, or shares it, only if that call has the same lease. Otherwise it asks
// the store. Read locks are renewed at least as often as with the client's lease. The default is
// the client's lease.
//
// If [FixedLease] and RenewedLease are both given, the last one counts.
func RenewedLease(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.lease, o.given, o.fixed = d, true, false }
}

// Wait limits how long an acquiring call waits for the lock, counted from the start of the call.
// When that time has passed, [Locker.TryLock] returns false, and other calls return
// [ErrNotAcquired]. The default is 0 for TryLock, and no limit for other calls. [Locker.Lock]
// ignores the option.
//
// With 0 there is a single attempt, whose own duration isn't limited. If the store hangs, the
// attempt takes as long as the context or the store's client allow. So in a handler, a short wait
// may be better. If d is negative, the call returns an error.
func Wait(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.wait, o.bounded = d, true }
}

// AtLeast keeps the lock taken for at least d, counted from its acquisition, even if it is unlocked
// earlier or its holder dies. It is for quick jobs that every replica starts. Without it, a replica
// whose clock is behind would find the lock free and run the job again. For most such jobs
// [Client.Once] is better, since it keeps the lock taken only after a success. By default a lock is
// free as soon as it is unlocked.
//
// Until d has passed, requests and renewals ask the store for at least the rest of d. If the last
// unlock comes before then, waiters aren't notified, and the store keeps the lock taken until d has
// passed. During that time [Locker.TryLock] returns false for every caller, [Locker.TTL] returns
// the rest of d, and [Locker.ForceUnlock] frees the lock. When d has passed, waiters of this client
// find the lock free at once. Waiters of other clients find it free within a third of the lease, or
// within ten seconds if that is sooner. After d, an unlock works as it does without AtLeast. A call
// that returns an error doesn't leave the lock taken.
//
// Such a hold isn't handed over inside the client. With [FixedLease] the lease is d if that is
// longer. If several re-entries have AtLeast, the longest counts. For the locks of a [MultiLocker],
// and for a fair lock that the store gave to a waiter in line, d begins with the first renewal (see
// [Hold.Until]).
//
// Fractions of a millisecond are rounded up. If d isn't positive, or is more than ten years, the
// call returns an error. On the reading side of an [RWLocker], or with a store that can't keep a
// lock taken, the error wraps [errors.ErrUnsupported]. In each case nothing is acquired.
//
// On etcd, which counts leases in seconds, the client that unlocked the lock frees it on time, when
// d has passed. If that client is closed before then, or its process dies, or d is longer than ten
// minutes, the lock might stay taken for up to three more seconds.
func AtLeast(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.atLeast, o.keeps = d, true }
}

// HolderNote adds a note to the id of this hold in the store, so that every client can see it: see
// [Holder.Note]. It is for the reading side of an [RWLocker]: the readers can then serve as a list
// of members, each with its note. Such a hold always comes from the store, and isn't shared with
// other readers of this client. If the caller's owner already holds the read lock or the write
// lock, the call keeps the id of that hold, and the note is ignored.
//
// A note consists of 1 to 512 characters, which are ASCII letters, digits or any of -._~%&=+. The
// results of [net/url.Values.Encode] contain only these. With any other note, the call returns an
// error. On the writing side, or for another kind of lock, the error wraps [errors.ErrUnsupported].
// By default there is no note.
func HolderNote(note string) AcquireOption {
	return func(o *acquireOptions) { o.note, o.noted = note, true }
}

// maxNote is the maximum length of a note. It keeps holder ids short enough for every store.
const maxNote = 512

// checkNote returns an error if a note is invalid.
func checkNote(note string) error {
	switch {
	case note == "":
		return errors.New("the holder's note is empty")
	case len(note) > maxNote:
		return fmt.Errorf("the holder's note has %d bytes, more than %d", len(note), maxNote)
	case !isNote(note):
		return fmt.Errorf("the holder's note %q has more than letters, digits and -._~%%&=+", note)
	}
	return nil
}

// isNote reports whether a text contains only characters that are allowed in a note. Colons aren't
// allowed, since they separate the parts of an id.
func isNote(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' ||
			strings.ContainsRune("-._~%&=+", r))
	})
}

// options applies opts to the call's defaults o, and checks the result.
func (c *Client) options(o acquireOptions, opts []AcquireOption) (acquireOptions, error) {
	if len(opts) > 0 {
		var err error
		if o, err = o.with(opts); err != nil {
			return o, err
		}
	}
	if !o.given {
		o.lease = c.lease
	}
	if err := checkLease(o.lease); err != nil {
		return o, err
	}
	o.lease = o.lease.Truncate(time.Millisecond)
	if !o.fixed {
		o.lease = max(o.lease, c.limits.MinLease)
	}
	if o.keeps {
		if err := checkKeep(o.atLeast); err != nil {
			return o, err
		}
		o.atLeast = (o.atLeast + time.Millisecond - 1).Truncate(time.Millisecond)
		if o.fixed {
			o.lease = max(o.lease, o.atLeast)
		}
	}
	if o.noted {
		if err := checkNote(o.note); err != nil {
			return o, err
		}
	}
	if o.endless {
		o.wait, o.bounded = 0, false
	}
	if o.wait < 0 {
		return o, fmt.Errorf("the wait %v is negative", o.wait)
	}
	return o, nil
}

func (o acquireOptions) with(opts []AcquireOption) (acquireOptions, error) {
	for _, opt := range opts {
		if opt == nil {
			return o, errors.New("an option is nil")
		}
		opt(&o)
	}
	return o, nil
}

// asked returns the lease to request from the store.
func (o acquireOptions) asked() time.Duration { return max(o.lease, o.atLeast) }

func checkKeep(d time.Duration) error {
	switch {
	case d <= 0:
		return fmt.Errorf("to keep the lock for %v: that isn't positive", d)
	case d > longestLease:
		return fmt.Errorf("to keep the lock for %v: that is longer than ten years", d)
	}
	return nil
}

// longestLease is the maximum lease. Sums of such leases and instants don't overflow a Duration.
const longestLease = 10 * 365 * 24 * time.Hour

func checkLease(d time.Duration) error {
	switch {
	case d < time.Millisecond:
		return fmt.Errorf("the lease %v is shorter than 1ms", d)
	case d > longestLease:
		return fmt.Errorf("the lease %v is longer than ten years", d)
	}
	return nil
}

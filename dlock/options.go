package dlock

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// DefaultLease is the lease of locks that don't set their own, unless [WithLease] says otherwise.
// They are renewed each third of it.
const DefaultLease = 30 * time.Second

// Option configures a [Client].
type Option func(*Client) error

// WithLease sets the lease of elections, of [Client.Once], and of locks without [FixedLease] and
// [RenewedLease]. The lease is how long such a lock outlives a holder that crashes, and how long a
// holder that is cut off from the store may believe in it. It is renewed each third of its length,
// so it should be many round trips and well above the pauses of a process: seconds. The default is
// [DefaultLease]. The minimum is 1 ms, or what the store allows. Fractions of a millisecond are
// dropped.
func WithLease(d time.Duration) Option {
	return func(c *Client) error {
		if err := checkLease(d); err != nil {
			return err
		}
		c.lease = d.Truncate(time.Millisecond)
		return nil
	}
}

// DefaultHandover is for how long a lock may be handed over inside a process, unless [WithHandover]
// says otherwise.
const DefaultHandover = 10 * time.Millisecond

// WithHandover bounds for how long goroutines of this client may hand a lock over without asking
// the store. If a lock was taken from the store less than d ago, and is renewed, an unlock passes
// it to the goroutine of this client that has waited longest. That is a thousand times faster than
// a round trip. After d it is released in the store, so that other processes get their turn: they
// may wait for up to d longer. The default is [DefaultHandover]. [New] panics if d is negative or
// above ten years.
//
// A hand-over rests on the store's last answer. After a [Locker.ForceUnlock] by another client, or
// if the store loses its data, a goroutine may still enter until d has passed, though another
// client has the lock by then. An unlock that hands the lock over doesn't notice. With 0 nothing is
// handed over, and every acquisition asks the store.
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

// WithClientID sets the client's id, the first half of what the store knows a holder by. The
// default is unique and says where the client runs: the host's name, the process id and 80 random
// bits, with slashes in between. Any text that isn't empty will do. Clients with the same id still
// exclude each other.
func WithClientID(id string) Option {
	return func(c *Client) error {
		if id == "" {
			return errors.New("the client id is empty")
		}
		c.id = id
		return nil
	}
}

// WithLogger sets the logger for what no call can return: renewals that fail, locks that are lost,
// stores that can't be reached while a call waits without a deadline. The default is
// [slog.Default]. One goroutine writes the records, in order, so a slow logger delays nothing. If
// it can't keep up, records are dropped, and their number is logged.
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
// [Owner]), as the calling thread is in Java. A goroutine then re-enters what it holds, and must
// unlock it itself. It is for code that was written that way; [WithOwner] is clearer, since
// goroutines have no identity in Go. Each plain call then reads a stack trace, which takes 2 us and
// more. The default is that plain calls belong to the Locker: see [Locker].
func WithGoroutineOwners() Option {
	return func(c *Client) error {
		c.goroutineOwners = true
		return nil
	}
}

// WithCallers has the client note the file and line of each call that acquires or waits, for
// [Client.Holds], [Client.Waits] and the debug page. So they show where a lock was taken. It costs
// each such call about a microsecond. The default is not to.
func WithCallers() Option {
	return func(c *Client) error {
		c.callers = new(callers)
		return nil
	}
}

// AcquireOption changes one acquiring call, or those of a Locker: see [Locker.With].
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	lease   time.Duration
	given   bool // the lease was given
	fixed   bool // and it is not renewed
	wait    time.Duration
	bounded bool // the wait was given
	endless bool // the call can't say that its wait is over: there is none
	atLeast time.Duration
	keeps   bool // atLeast was given
	note    string
	noted   bool // the note was given

	permits, limit int // of a semaphore

	site site // of the call
}

// FixedLease sets a fixed lease: the lock isn't renewed, and ends by itself. Less than 1 ms, or
// more than ten years, is an error of the call. Fractions of a millisecond are dropped. If the
// caller's owner holds the lock already and that hold is renewed, d is ignored. If that hold has a
// fixed lease, it becomes the longer of d and its rest. A re-entry without FixedLease into a hold
// that has one is renewed until its unlock; then the hold ends after the rest of its lease. The
// default is a renewed lease.
//
// A Locker whose plain calls had the lock waits for its unlock even after the lease has ended,
// since the unlock may still come. See [RWLocker.Reader] for plain reads. For a lock that nobody is
// to unlock use [Locker.Acquire], an [Owner], or a Locker for that one call.
func FixedLease(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.lease, o.given, o.fixed = d, true, true }
}

// Lease is [FixedLease]. The default is none: a lock is renewed.
//
// Deprecated: Use FixedLease, whose name says that the lock isn't renewed. Lease means the same. It
// stays for one minor version.
func Lease(d time.Duration) AcquireOption { return FixedLease(d) }

// RenewedLease sets the lease of one acquisition, which is renewed each third of d until the
// unlock. It is for one call what [WithLease] is for a client. A short lease lets others in soon
// after the holder has died. A long one outlives an outage of the store, and tells later of a loss.
// It should be many round trips and well above the pauses of a process. Less than 1 ms, or more
// than ten years, is an error of the call. Fractions of a millisecond are dropped. If the store
// allows no lease so short (2 s on etcd), it is as short as allowed.
//
// A hold has one lease, that of the call that acquired it. If the caller's owner holds the lock
// already and that hold is renewed, d is ignored. If that hold has a fixed lease, it is renewed
// with the longer of d and its rest until this call's unlock; then it ends after that rest. A lock
// is handed over to, and shared with, only calls of this client that want the same lease; others
// ask the store. Reads are renewed at least as often as the client's lease says. The default is the
// client's lease.
//
// If [FixedLease] and RenewedLease are both given, the last one counts.
func RenewedLease(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.lease, o.given, o.fixed = d, true, false }
}

// Wait bounds how long an acquiring call waits for the lock, counted from the call. When it is
// over, [Locker.TryLock] returns false, and the others return [ErrNotAcquired]. The default is 0
// for TryLock, and no bound for the others. [Locker.Lock] ignores it.
//
// With 0 there is a single attempt, which isn't bounded itself: if the store hangs, it takes as
// long as the context or the store's client allow. So in a handler a short wait may be better. A
// negative wait is an error of the call.
func Wait(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.wait, o.bounded = d, true }
}

// AtLeast has the lock stay taken until d after it was acquired, however early it is unlocked, and
// also if its holder dies. It is for quick jobs that every replica starts: otherwise a replica
// whose clock is late would find the lock free and run the job again. [Client.Once] is made for
// that. Until d is over, requests and renewals ask the store for the rest of d at least. The last
// unlock sets that rest, counted by the store, and wakes nobody. Waiters of this client find the
// lock free at once when it is over, others within a third of the lease, or 10 s. Until then
// [Locker.TryLock] of others is false, [Locker.TTL] says how long it lasts, and
// [Locker.ForceUnlock] ends it. An unlock after d is an ordinary one. So is that of a call which
// returns an error.
//
// Such a hold isn't handed over inside the client. With [FixedLease] the lease is the longer of
// both. Of several re-entries with AtLeast the longest counts. A fair lock that was given to a
// waiter in line has its d from its first renewal on, which follows at once; so have the locks of a
// [MultiLocker].
//
// The default is that a lock is free as soon as it is unlocked. Parts of a millisecond count as
// one. A d that isn't positive, or is above ten years, is an error of the call. So is AtLeast on
// the reading side of an [RWLocker], and with a store that can't keep a lock taken: the error wraps
// [errors.ErrUnsupported], and nothing is acquired.
//
// On etcd, which counts leases in seconds, the client that unlocked the lock ends d in time. If
// that client is closed before, or its process dies, or d is longer than ten minutes, the lock may
// stay taken for up to three seconds more.
func AtLeast(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.atLeast, o.keeps = d, true }
}

// HolderNote has the store know this hold by an id with a note, for everybody who looks: see
// [Holder.Note]. It is for the reading side of an [RWLocker]: its holders are then a list of
// members with their notes. Such a hold is always asked of the store, and isn't shared with other
// readers of this client. A re-entry, and a read under a write of the same owner, keep the existing
// id.
//
// A note has 1 to 512 bytes, of letters, digits and -._~%&=+, which is what [net/url.Values.Encode]
// returns. Anything else is an error of the call. So is a note for another side or kind, with an
// error that wraps [errors.ErrUnsupported]. The default is no note.
func HolderNote(note string) AcquireOption {
	return func(o *acquireOptions) { o.note, o.noted = note, true }
}

// maxNote keeps ids of holders short enough for every store.
const maxNote = 512

// checkNote says what is wrong with a note, if anything.
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

// isNote says whether a text has only characters that a note may have. A colon isn't among them: it
// is what an id is taken apart by.
func isNote(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' ||
			strings.ContainsRune("-._~%&=+", r))
	})
}

// options applies opts to what the call does by default, and checks the outcome.
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

// asked returns the lease that the store is asked for.
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

// longestLease keeps sums of leases and instants far from what a Duration holds.
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

package dlock

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// DefaultLease is the lease of locks that are taken without [FixedLease] and [RenewedLease], unless [WithLease] says
// otherwise. They are renewed each time a third of it has passed.
const DefaultLease = 30 * time.Second

// Option configures a [Client].
type Option func(*Client) error

// WithLease sets the lease of locks that are taken without [FixedLease] and [RenewedLease], of elections and of [Client.Once]: how long such a lock
// outlives a holder that crashes, and how long a holder that is cut off from the store may believe in it. They
// are renewed each time a third of it has passed, so it should be many round trips and well above
// the pauses of a process: seconds. The default is [DefaultLease], the minimum 1 ms or what the
// store allows; fractions of a millisecond are dropped.
func WithLease(d time.Duration) Option {
	return func(c *Client) error {
		if err := checkLease(d); err != nil {
			return err
		}
		c.lease = d.Truncate(time.Millisecond)
		return nil
	}
}

// DefaultHandover is how long a lock may be handed on inside a process, unless [WithHandover] says
// otherwise.
const DefaultHandover = 10 * time.Millisecond

// WithHandover bounds for how long a lock may be handed from goroutine to goroutine of this client
// without asking the store. When a lock is unlocked that was taken from the store less than d ago,
// and that is renewed, it passes to the goroutine of this client that has waited longest, which is
// a thousand times faster than a round trip. After d it is released in the store, so that other
// processes get their turn: they may wait for up to d longer. The default is [DefaultHandover]; less
// than 0 and more than ten years make [New] panic.
//
// A lock that is handed on rests on what the store last said. After a [Locker.ForceUnlock] by
// another client, or if the store loses its data, a goroutine may still enter until d has passed,
// though another client has the lock by then, and an unlock that hands the lock on doesn't notice.
// With 0 nothing is handed on, and every acquisition has the store's word.
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
// default says where the client runs, and differs for each: the host's name, the process id and 80 random bits, with slashes in
// between. Any text that isn't empty will do. Two clients may have one id, by mistake or not: they
// exclude each other all the same.
func WithClientID(id string) Option {
	return func(c *Client) error {
		if id == "" {
			return errors.New("the client id is empty")
		}
		c.id = id
		return nil
	}
}

// WithLogger sets where the client logs what no call can return: renewals that fail, locks that are
// lost, stores that can't be reached while a call waits without a deadline. The default is
// [slog.Default]. Records are written by a goroutine of their own, in order, so that a slow logger
// keeps nothing waiting; of those that it can't keep up with it gets the number.
func WithLogger(l *slog.Logger) Option {
	return func(c *Client) error {
		if l == nil {
			return errors.New("the logger is nil")
		}
		c.log.logger = l
		return nil
	}
}

// WithGoroutineOwners makes the calling goroutine the owner of plain calls (those that no [Owner]
// is named for), as the calling thread is in Java: a goroutine re-enters what it holds, and must
// itself unlock it. It is for code that was written that way; Go itself gives goroutines no
// identity, and [WithOwner] says more clearly what is meant. Each plain call reads a stack trace then,
// which takes 2 us and more. The default is that they are the Locker's: see [Locker].
func WithGoroutineOwners() Option {
	return func(c *Client) error {
		c.goroutineOwners = true
		return nil
	}
}

// WithCallers has the client note the file and line of each call that acquires or waits, for
// [Client.Holds], [Client.Waits] and the debug page: where the lock that nobody gives back was taken.
// It costs each such call about a microsecond. The default is not to.
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

// FixedLease sets a fixed lease: the lock ends by itself after it, and is not renewed. Less than
// 1 ms, and more than ten years, is an error of the call; fractions of a millisecond are dropped. If
// the caller's owner holds the lock already and it is being renewed, d is ignored; if it has a fixed
// lease, that becomes the longer of d and what is left. A re-entry without FixedLease into a
// hold that has one is renewed until it is unlocked; then the hold ends by itself after what is left
// of its lease. The default is none: a lock is renewed.
//
// A Locker whose plain calls had the lock waits for its unlock also when the lease has ended, since
// nobody knows that it won't come; for the reading side of an [RWLocker] see [RWLocker.Reader]. For
// a lock that nobody is to unlock use [Locker.Acquire], an [Owner], or a Locker for that one call.
func FixedLease(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.lease, o.given, o.fixed = d, true, true }
}

// Lease is [FixedLease]. The default is none: a lock is renewed.
//
// Deprecated: Use FixedLease, whose name says that the lock isn't renewed. Lease means the same. It
// stays for one minor version.
func Lease(d time.Duration) AcquireOption { return FixedLease(d) }

// RenewedLease sets the lease of one acquisition that is renewed until the lock is unlocked, each time a third of d has passed: what [WithLease], whose lease is the default, does
// for a whole client. A short one lets others in soon after the holder has died; with a long one the lock outlives an outage of the store, and is the later found to have been taken away.
// It should be many round trips and well above the pauses of a process: see WithLease. Less than 1 ms and more than ten years are errors of the call; fractions of
// a millisecond are dropped, and less than the store allows (2 s on etcd) is what it allows.
//
// A hold has one lease, that of whoever acquired it: if the caller's owner holds the lock already and it is being renewed, d is ignored. If it has a fixed lease it
// is renewed from then on with the longer of d and what is left, until this call's unlock; then the hold ends by itself after what is left of that. Inside a client
// a lock is handed on to, and shared by, those only that want the same lease; others ask the store. Who reads is renewed as often as the client's lease has it, at least.
//
// Of several of [FixedLease] and RenewedLease the last counts.
func RenewedLease(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.lease, o.given, o.fixed = d, true, false }
}

// Wait bounds how long an acquiring call waits for the lock, counted from the call; 0 is a single
// attempt, which isn't bounded itself: where the store hangs it takes as long as the context or the
// store's client allow, so that in a handler a short wait may be better; and a negative wait is an error of the call. When it is over [Locker.TryLock] answers
// false, the others [ErrNotAcquired]. The default is 0 for TryLock and no bound for the others. [Locker.Lock] can't say that a wait is over, and has none.
func Wait(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.wait, o.bounded = d, true }
}

// AtLeast has the lock stay taken until d after it was acquired, however early it is unlocked, and also if its holder dies: for a job that
// every replica starts, and that is over so soon that one whose clock is late would find the lock free and run it again ([Client.Once] is made for that). Until
// d is over every request for the lock, and every renewal, asks the store for no less than what is left of d. The last unlock then sets what is left,
// which the store counts, and wakes nobody; who waits finds the lock free when that is over, in this client at once, elsewhere at the latest after a third of the lease, 10 s
// at most. Until then another's [Locker.TryLock] is false, [Locker.TTL] says how long it goes on, and [Locker.ForceUnlock] ends it. An unlock after d
// is an ordinary one, and so is giving back what a call got that returns an error.
//
// Such a hold isn't handed on inside the client. With [FixedLease] the lease is the longer of both. Whoever re-enters with AtLeast has the lock stay taken
// for the longest of what was asked for. A fair lock that was given to who stood in line has its d from its first renewal on, which follows at once, and so have those of a [MultiLocker].
//
// The default is none: a lock is free as soon as it is unlocked. Parts of a millisecond count as one. A d that isn't positive, or is longer than ten years, is an error of the call. So is AtLeast on the reading side of an [RWLocker], and with a store that can't keep what is
// released: it wraps [errors.ErrUnsupported], and nothing is acquired.
//
// On etcd, which counts leases in seconds, the client that unlocked the lock ends d in time. If
// that client is closed before, or its process dies, or d is longer than ten minutes, the lock may
// stay taken for up to three seconds more.
func AtLeast(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.atLeast, o.keeps = d, true }
}

// HolderNote has the store know this hold by an id with a note, for everybody who looks: see
// [Holder.Note]. It is for the reading side of an [RWLocker], whose holders are then a list of who
// is there and what each says of itself. Such a hold is always asked of the store, and other
// readers of this client don't share it. A re-entry, and a read under a write of the same party,
// keep the id that is there.
//
// A note has 1 to 512 bytes, of letters, digits and -._~%&=+, which is what
// [net/url.Values.Encode] returns; anything else is an error of the call, and so is a note for
// another side or kind, which wraps [errors.ErrUnsupported]. The default is no note.
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

package dlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Client makes Lockers on one store and manages their holds: one watchdog renews them all, and
// waiters for one name share a queue. Most programs need one. It is safe for concurrent use.
type Client struct {
	session         backend.Session
	notifier        backend.Notifier     // nil if the store has none
	batches         backend.BatchRenewer // nil if the store has none
	batcher         backend.Batcher      // nil if the store has none
	prompt          bool                 // the store's steps never wait
	leavable        bool                 // they can be left
	settles         func()               // waits for what was left; nil if there is nothing
	inspector       backend.Inspector    // nil if the store can't say who has a lock
	latcher         backend.Latcher      // nil if the store has no latches
	lister          backend.Lister       // nil if the store can't say which locks there are
	liner           backend.Liner        // nil if those who wait can't stand in line in the store
	limits          backend.Limits
	store           string                    // what errors call it
	whyNot          func(backend.Kind) string // nil if it has nothing to say of the kinds of lock that it lacks
	id              string
	lease           time.Duration
	handover        time.Duration
	log             logbook
	traces          []Trace
	tracesSteps     bool // one of them wants to know of those
	counts          counts
	goroutineOwners bool
	callers         *callers // nil: nobody asks

	epoch   time.Time       // instants count from here, on the monotonic clock
	ctx     context.Context // ends with Close, cause ErrClosed
	end     context.CancelCauseFunc
	running sync.WaitGroup // goroutines of ours

	acquisitions sync.Pool // of those that are over
	patientSteps atomic.Pointer[patience]
	patient      atomic.Pointer[patience]
	forced       atomic.Uint64 // how many locks this client has forced

	// The mutex is never held across I/O or a wait, nor while anything of a caller's is called, its
	// contexts among it. Functions that need it end in Locked.
	mu         sync.Mutex
	closed     bool
	number     uint64                       // of the last outermost acquisition
	attempts   uint64                       // to acquire, that were sent
	objects    [families]map[string]*object // by name: locks that somebody has here, or waits for
	struckAt   instant                      // when it last forced a lock
	lost       map[lostKey][]*hold          // of owners, not yet unlocked
	losses     []*hold                      // the same, oldest first
	troubles   map[*claim]why               // what speaks against claims that aren't lost yet
	lastLosses []*Loss                      // oldest first
	stalled    stall                        // the last
	forgot     bool                         // some of these were dropped
	spare      *queue                       // for the next that is needed
	crowds     map[lockKey]*crowd           // other clients that are to come first
	streaks    streaks                      // of late
	takeBacks  takeBacks
	alarms     alarms      // by time: what is due
	timer      *time.Timer // runs ring at the first of these
	armed      instant     // when that will be
	polls      bool        // a subscription was refused, and that was logged
	ends       []func()    // of contexts and subscriptions: to be called once mu is free
	tales      []func()    // of traces: to be called after these
	records    []record    // to be logged after these
}

// An instant is a time on the client's monotonic clock.
type instant = time.Duration

// New returns a client of the store b. Close it when it is no longer needed. New does no I/O. It
// panics if b is nil or an option is invalid: an empty client id, or a lease that is under 1 ms or
// shorter than the store allows.
func New(b backend.Backend, opts ...Option) *Client {
	if b == nil {
		panic("dlock: New: the backend is nil")
	}
	c := &Client{
		limits:   b.Limits(),
		store:    nameOf(b),
		lease:    DefaultLease,
		handover: DefaultHandover,
		log:      logbook{logger: slog.Default()},
		epoch:    time.Now(),
		lost:     make(map[lostKey][]*hold),
		crowds:   make(map[lockKey]*crowd),
		streaks:  newStreaks(),
	}
	for f := range c.objects {
		c.objects[f] = make(map[string]*object)
	}
	for _, opt := range opts {
		if opt == nil {
			panic("dlock: New: an option is nil")
		}
		if err := opt(c); err != nil {
			panic(fmt.Sprintf("dlock: New: %v", err))
		}
	}
	if c.id == "" {
		c.id = newID()
	} else {
		c.number = mathrand.Uint64N(1 << 62) // so that two clients that share an id by mistake don't share holds
	}
	if c.lease < c.limits.MinLease {
		panic(fmt.Sprintf("dlock: New: the lease %v is shorter than the store's minimum of %v", c.lease, c.limits.MinLease))
	}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	session, can := backend.Open(b)
	c.session, c.whyNot, c.settles = session, can.WhyNot, can.Settle
	c.prompt, c.leavable = can.Steps == backend.StepsNeverWait, can.Steps == backend.StepsReturn
	c.notifier, c.batches, c.batcher = can.Notifier, can.BatchRenewer, can.Batcher
	c.inspector, c.lister, c.liner, c.latcher = can.Inspector, can.Lister, can.Liner, can.Latcher
	return c
}

// nameOf returns what errors call a store.
func nameOf(b backend.Backend) string {
	if named, ok := b.(fmt.Stringer); ok {
		return named.String()
	}
	return fmt.Sprintf("%T", b)
}

// ID returns the client's id, by which the store knows its holders: that of [WithClientID], or
// "HOST/PID/RANDOM".
func (c *Client) ID() string { return c.id }

// Lease returns the lease of locks that don't set their own: see [WithLease].
func (c *Client) Lease() time.Duration { return c.lease }

// Closed returns a channel that is closed when the client is: see [Client.Close].
func (c *Client) Closed() <-chan struct{} { return c.ctx.Done() }

// Locker returns a Locker for the lock of that name. Each call returns a new one, and each is a
// mutex of its own (see [Locker]). A name may be any text that isn't empty, and case matters;
// stores may refuse some. It is checked when the Locker is used.
func (c *Client) Locker(name string) *Locker { return newLocker(c, backend.Exclusive, name) }

// FencedLocker returns a Locker for the lock of that name whose acquisitions are numbered.
// [Hold.Token], and [Token] of a hold's context, return the number. A resource that remembers the
// largest number, and refuses smaller ones, is safe from a holder that was paused past its lease. A
// re-entry has the number of its hold. LockContext and the other calls draw a number, too, but
// don't return it.
//
// It is the same lock as that of [Client.Locker] by the same name, so each excludes the other, but
// acquisitions of the other have no number. It isn't handed over inside the client. An owner that
// holds the lock as one of the two and asks for it as the other gets [ErrConflict]. If the store
// has no fenced locks, every error wraps [errors.ErrUnsupported].
func (c *Client) FencedLocker(name string) *Locker { return newLocker(c, backend.Fenced, name) }

// FairLocker returns a Locker for the lock of that name that goes to its waiters in order of
// arrival, over all processes. Each waiting call has a place in the store. The store itself gives
// the lock to the first, in the step that frees it. [Locker.TryLock] without a wait fails while
// others wait. A call that gives up leaves its place at once; the place of a dead process ends
// after 3 s.
//
// It is the same lock as that of [Client.Locker] by the same name, so each excludes the other. But
// waiters for a plain lock don't stand in line, and may not be told of this one's release: don't
// mix them. It isn't handed over inside the client. An owner that holds the lock as one of the two
// and asks for it as the other gets [ErrConflict]. If the store has no fair locks, every error
// wraps [errors.ErrUnsupported].
func (c *Client) FairLocker(name string) *Locker { return newLocker(c, backend.Fair, name) }

// Close ends the client. Waiting calls return [ErrClosed]; a waiting [Locker.Lock] panics with it,
// since it can't return an error. (End such goroutines first, or use LockContext.) [Locker.Lost]
// channels are closed, contexts of [Locker.Do] end with that cause, and renewals stop.
//
// Close releases nothing, since a holder may still be in its critical section. Each lock ends with
// its lease, or when its holder unlocks it, which still works. Close logs what is held. The store's
// client stays open, and may be closed afterwards. Close returns once the goroutines of this client
// have ended. It waits for a second at most for one that is stuck in the store's client. The error
// is the session's. Further calls do nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.reportHeldLocked()
	for h := range c.holdsLocked() {
		c.forsakeLocked(h)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.unlock()
	c.end(ErrClosed)
	c.dismiss()
	err := c.session.Close()
	c.settle()
	return err
}

// reportHeldLocked logs what is held still.
func (c *Client) reportHeldLocked() {
	const most = 10
	var names []string
	held := 0
	for h := range c.holdsLocked() {
		held++
		if name := h.claim.object.name; h.valid(c.now()) && len(names) < most && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		c.warnLocked("closed while locks are held: each ends with its lease, or when it is unlocked", "locks", held, "names", names)
	}
}

// holdsLocked returns whatever anybody of this client has.
func (c *Client) holdsLocked() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		for _, table := range c.objects {
			for _, o := range table {
				for h := range o.holds() {
					if !yield(h) {
						return
					}
				}
			}
		}
	}
}

// holds returns what anybody has of a lock.
func (o *object) holds() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		if o.alone != nil && !yield(o.alone) {
			return
		}
		for _, h := range o.readers() {
			if !yield(h) {
				return
			}
		}
		for h := range o.permitted() {
			if !yield(h) {
				return
			}
		}
	}
}

// dismiss lets everybody who waits look that the client is closed.
func (c *Client) dismiss() {
	c.mu.Lock()
	defer c.unlock()
	for _, table := range c.objects {
		for _, o := range table {
			for q := range o.queues() {
				for a := q.first; a != nil; a = a.next {
					a.notify()
				}
			}
		}
	}
}

// closePatience is how long Close waits for steps that are stuck in the store's client, or for a
// logger.
const closePatience = time.Second

// settle waits for our goroutines.
func (c *Client) settle() {
	done := make(chan struct{})
	go func() {
		c.running.Wait()
		if c.settles != nil {
			c.settles()
		}
		<-c.log.written()
		close(done)
	}()
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
}

// backgroundLocked runs f in a goroutine that Close waits for. It does nothing if the client is
// closed.
func (c *Client) backgroundLocked(f func()) {
	if !c.closed {
		c.running.Go(f)
	}
}

// afterEvent, in tests, looks at the tables each time that a mutex is given back.
var afterEvent func(*Client)

// unlock unlocks c.mu and does what had to wait for that: first whoever is told that something is
// over, all of them, then whoever looks on, then what is to be logged.
func (c *Client) unlock() {
	if afterEvent != nil {
		afterEvent(c)
	}
	ends, tales, records := c.ends, c.tales, c.records
	c.ends, c.tales, c.records = nil, nil, nil
	c.mu.Unlock()
	for _, end := range ends {
		end()
	}
	for _, tell := range tales {
		tell()
	}
	c.log.add(records...)
}

// laterLocked calls end once c.mu is free.
func (c *Client) laterLocked(end func()) { c.ends = append(c.ends, end) }

// traceLocked calls tell after that.
func (c *Client) traceLocked(tell func()) { c.tales = append(c.tales, tell) }

func (c *Client) now() instant { return time.Since(c.epoch) }

// nextOwnerLocked returns who the next outermost acquisition is, on the wire. No two are the same.
// Stores take an owner apart at its last colon, so a note stands before that.
func (c *Client) nextOwnerLocked(note string) string {
	c.number++
	owner := make([]byte, 0, 64)
	owner = append(owner, c.id...)
	if note != "" {
		owner = append(append(owner, noteMark...), note...)
	}
	owner = append(owner, ':')
	return string(strconv.AppendUint(owner, c.number, 10))
}

// stored returns the lease that the store is asked for where the caller asks for d.
func (c *Client) stored(d time.Duration) time.Duration {
	d = max(d, c.limits.MinLease)
	step := max(c.limits.LeaseStep, time.Millisecond)
	return (d + step - 1) / step * step
}

// kept returns for how long the store is asked to keep what is released with d left.
func kept(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// newID returns an id that no other client has, and that says where it runs.
func newID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:16])
}

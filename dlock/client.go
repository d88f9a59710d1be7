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
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// Client creates Lockers on one store, and manages their holds. A single watchdog renews all its
// holds. Calls that wait for the same lock share a queue. Most programs need one Client. It is safe
// for concurrent use.
type Client struct {
	settings
	store           *steps.Store
	log             logbook
	traces          []Trace
	counts          counts
	goroutineOwners bool
	callers         *callers // nil unless WithCallers asks for them

	ctx      context.Context // ends with Close, with cause ErrClosed
	releases *steps.Patience // bounds releases that have no other limit

	acquisitions sync.Pool     // finished acquisitions, for reuse
	forced       atomic.Uint64 // how many locks this client has forced

	// The mutex is never held during I/O, a wait, or a call of the caller's code, such as the
	// methods of its contexts. Functions whose names end in Locked require the mutex.
	mu         sync.Mutex
	closed     bool
	number     uint64                                // of the last outermost acquisition
	attempts   uint64                                // how many acquiring requests were sent
	objects    [protocol.Families]map[string]*object // held or awaited locks, by family and name
	struckAt   instant                               // when this client last forced a lock
	lost       map[lostKey][]*hold                   // lost holds that weren't unlocked yet
	losses     []*hold                               // the same holds, oldest first
	troubles   map[*claim]why                        // why these claims may be lost
	lastLosses []*Loss                               // oldest first
	lostHolds  counter                               // may be read without the mutex
	stalled    stall                                 // the last stall
	forgot     bool                                  // whether some lost holds were forgotten
	spare      *queue                                // for reuse
	crowds     map[lockKey]*crowd                    // other clients that should get a lock first
	streaks    streaks                               // the recent streaks
	takeBacks  takeBacks
	alarms     alarms          // by time
	timer      *time.Timer     // runs ring at the first alarm
	armed      instant         // when the timer rings
	rings      func()          // called by the timer, without the mutex
	polls      bool            // whether it was logged that the client polls instead of subscribing
	starts     []func(*Client) // start goroutines; called before mu is unlocked
	ends       []func()        // end contexts and subscriptions; called after mu is unlocked
	tales      []func()        // calls of traces, made after ends
	records    []record        // log records, written after tales
}

// The settings of a client don't change after New, so they need no mutex.
type settings struct {
	id       string
	lease    time.Duration
	handover time.Duration
	epoch    time.Time      // instants count from this time, on the monotonic clock
	limits   backend.Limits // of the store
	notifies bool           // whether the store can send messages
	inspects bool           // whether the store can say who holds a lock
}

// An instant is a time on the client's monotonic clock.
type instant = time.Duration

func (set *settings) now() instant { return time.Since(set.epoch) }

// stored returns the lease to request from the store if the caller wants the lease d.
func (set *settings) stored(d time.Duration) time.Duration {
	d = max(d, set.limits.MinLease)
	step := max(set.limits.LeaseStep, time.Millisecond)
	return (d + step - 1) / step * step
}

// New returns a client for the store b. Close it when it is no longer needed. New does no I/O. It
// panics if b is nil or an option is invalid. A client id must not be empty. A lease must be at
// least 1 ms, and no shorter than the store allows.
func New(b backend.Backend, opts ...Option) *Client {
	if b == nil {
		panic("dlock: New: the backend is nil")
	}
	c := &Client{
		settings: settings{lease: DefaultLease, handover: DefaultHandover, epoch: time.Now()},
		log:      logbook{logger: slog.Default()},
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
		c.number = mathrand.Uint64N(1 << 62) // clients with the same id need unique owner strings
	}
	if least := b.Limits().MinLease; c.lease < least {
		panic(fmt.Sprintf("dlock: New: the lease %v is shorter than the store's minimum of %v",
			c.lease, least))
	}
	c.store = steps.Open(b, c.lease)
	c.limits = c.store.Limits
	c.notifies, c.inspects = c.store.Notifier != nil, c.store.Inspector != nil
	if slices.ContainsFunc(c.traces, func(t Trace) bool { return t.StepDone != nil }) {
		c.store.Observe = c.stepDone
	}
	c.rings = c.ring
	c.ctx, c.releases = c.store.Context(), c.store.Patience(longestRelease)
	return c
}

// ID returns the client's id, which is part of its holders' ids in the store. It is the id from
// [WithClientID], or "HOST/PID/RANDOM".
func (c *Client) ID() string { return c.id }

// Lease returns the default lease of the client's locks: see [WithLease].
func (c *Client) Lease() time.Duration { return c.lease }

// Closed returns a channel that is closed by [Client.Close].
func (c *Client) Closed() <-chan struct{} { return c.ctx.Done() }

// Locker returns a Locker for the lock with the given name. Each call returns a new Locker, which
// acts as a separate mutex (see [Locker]). A name may be any non-empty string. Case matters, and
// stores may refuse some names. The name is checked when the Locker is used.
func (c *Client) Locker(name string) *Locker {
	return newLocker(c, protocol.Kind(backend.Exclusive), name)
}

// FencedLocker returns a Locker for the lock with the given name whose acquisitions are numbered.
// [Hold.Token], and [Token] of a hold's context, return the number. A resource that remembers the
// largest number, and refuses smaller ones, is safe from a holder that was paused past its lease. A
// re-entry has the same number as its hold. LockContext and the other calls also use up a number,
// but don't return it.
//
// [Client.Locker] with the same name returns a plain Locker for the same lock. The two Lockers
// exclude each other, but acquisitions of the plain one have no number. A fenced lock isn't handed
// over inside the client. An owner that holds the lock one way and asks for it the other way gets
// [ErrConflict]. If the store has no fenced locks, every error wraps [errors.ErrUnsupported].
func (c *Client) FencedLocker(name string) *Locker {
	return newLocker(c, protocol.Kind(backend.Fenced), name)
}

// FairLocker returns a Locker for the lock with the given name. The lock goes to its waiters in
// order of arrival, across all processes. Each waiting call has a place in the store. The store
// itself gives the lock to the first waiter, in the step that frees it. [Locker.TryLock] without a
// wait fails while others wait. A call that gives up leaves its place at once. The place of a dead
// process expires after 3 s.
//
// [Client.Locker] with the same name returns a plain Locker for the same lock, and the two exclude
// each other. Don't mix them. Waiters for a plain lock don't stand in line, and may not be notified
// when a fair holder releases it. A fair lock isn't handed over inside the client. An owner that
// holds the lock one way and asks for it the other way gets [ErrConflict]. If the store has no fair
// locks, every error wraps [errors.ErrUnsupported].
func (c *Client) FairLocker(name string) *Locker {
	return newLocker(c, protocol.Kind(backend.Fair), name)
}

// Close ends the client. Waiting calls return [ErrClosed]. A waiting [Locker.Lock] panics with it,
// since it can't return an error. (End such goroutines first, or use LockContext.) [Locker.Lost]
// channels are closed, contexts of [Locker.Do] end with the cause ErrClosed, and renewals stop.
//
// Close releases nothing, since a holder may still be in its critical section. Each lock stays held
// until its holder unlocks it or its lease ends. Unlocking still works. Close logs which locks are
// held. The store's client stays open, and may be closed afterwards. Close returns once the
// goroutines of this client have ended. If one of them is stuck in the store's client, Close waits
// at most a second. It returns the error from closing the session. Further calls do nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.store.Refuse(ErrClosed)
	c.reportHeldLocked()
	for h := range c.holdsLocked() {
		c.forsakeLocked(h)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
	c.unlock()
	c.store.End(ErrClosed)
	c.dismiss()
	err := c.store.Session.Close()
	c.settle()
	return err
}

// reportHeldLocked logs which locks are still held.
func (c *Client) reportHeldLocked() {
	const most = 10
	var names []string
	held := 0
	for h := range c.holdsLocked() {
		held++
		if name := h.claim.object.name; h.valid(c.now()) && len(names) < most &&
			!slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		c.warnLocked("closed while locks are held: each ends with its lease, or when it is unlocked", "locks", held, "names", names)
	}
}

// holdsLocked returns all holds of this client.
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

// holds returns all holds on a lock.
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

// dismiss wakes all waiting calls, so that they see that the client is closed.
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

// closePatience is how long Close waits for requests that hang in the store's client, and for a
// logger that hangs.
const closePatience = time.Second

// settle waits for the client's goroutines.
func (c *Client) settle() {
	done := make(chan struct{})
	go func() {
		c.store.Wait()
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

// startLocked arranges for start to be called just before c.mu is unlocked. It may start
// goroutines, and must do nothing else that takes time.
func (c *Client) startLocked(start func(*Client)) {
	if !c.closed {
		c.starts = append(c.starts, start)
	}
}

// backgroundLocked arranges for f to run in a goroutine that Close waits for. It does nothing if
// the client is closed.
func (c *Client) backgroundLocked(f func()) {
	c.startLocked(func(c *Client) { c.store.Go(f) })
}

// afterEvent is set in tests, to check the client's tables each time its mutex is unlocked.
var afterEvent func(*Client)

// unlock starts what was to run in the background, unlocks c.mu, and then does the work that was
// postponed until then. It ends contexts and subscriptions first, then calls traces, and then
// writes log records.
func (c *Client) unlock() {
	if afterEvent != nil {
		afterEvent(c)
	}
	starts, ends, tales, records := c.starts, c.ends, c.tales, c.records
	c.starts, c.ends, c.tales, c.records = nil, nil, nil, nil
	for _, start := range starts {
		start(c)
	}
	c.mu.Unlock()
	for _, end := range ends {
		end()
	}
	for _, tell := range tales {
		tell()
	}
	c.log.add(records...)
}

// laterLocked arranges for end to be called once c.mu is unlocked.
func (c *Client) laterLocked(end func()) { c.ends = append(c.ends, end) }

// traceLocked arranges for tell to be called once c.mu is unlocked, after all functions passed to
// laterLocked.
func (c *Client) traceLocked(tell func()) { c.tales = append(c.tales, tell) }

// nextOwnerLocked returns a unique owner string for the next outermost acquisition. Stores split an
// owner string at its last colon, so the note comes before that colon.
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

// kept rounds d up to whole milliseconds. d is the time for which a released lock must stay taken.
func kept(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// newID returns a unique client id that says where the client runs.
func newID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:16])
}

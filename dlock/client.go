package dlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"slices"
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
	traces          traces
	counts          counts
	goroutineOwners bool
	callers         *callers // nil unless WithCallers asks for them

	ctx      context.Context // ends with Close, with cause ErrClosed
	releases *steps.Patience // bounds releases that have no other limit

	acquisitions sync.Pool     // finished acquisitions, for reuse
	forced       atomic.Uint64 // how many force-unlocks this client has made

	// The mutex is never held during I/O, during a wait, or while the caller's code runs. That
	// includes the methods of the caller's contexts.
	mu    sync.Mutex
	state state // use it only while mu is locked
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
	}
	c.state.make(&c.settings, c.ring, c.state.settle)
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
		// Other clients may have the same id. To keep their owner strings distinct, each client
		// starts numbering them at a random value.
		c.state.number = mathrand.Uint64N(1 << 62)
	}
	if least := b.Limits().MinLease; c.lease < least {
		panic(fmt.Sprintf("dlock: New: the lease %v is shorter than the store's minimum of %v",
			c.lease, least))
	}
	c.store = steps.Open(b, c.lease)
	c.limits = c.store.Limits
	c.notifies, c.inspects = c.store.Notifier != nil, c.store.Inspector != nil
	if slices.ContainsFunc(c.traces, func(t Trace) bool { return t.StepDone != nil }) {
		c.store.Observe = c.traces.stepDone
	}
	c.ctx, c.releases = c.store.Context(), c.store.Patience(longestRelease)
	return c
}

// ID returns the client's id, which is part of its holders' ids in the store. It is the id from
// [WithClientID], or "HOST/PID/RANDOM".
func (c *Client) ID() string { return c.id }

// Lease returns the default lease of the client's locks. See [WithLease].
func (c *Client) Lease() time.Duration { return c.lease }

// Closed returns a channel that is closed by [Client.Close].
func (c *Client) Closed() <-chan struct{} { return c.ctx.Done() }

// Locker returns a Locker for the lock with the given name. Each call returns a new Locker, which
// acts as a separate mutex (see [Locker]). A name may be any non-empty string. Case matters, and
// stores can refuse some names. The name is checked when the Locker is used.
func (c *Client) Locker(name string) *Locker {
	return newLocker(c, protocol.Kind(backend.Exclusive), name)
}

// FencedLocker returns a Locker for the lock with the given name whose acquisitions are numbered.
// [Hold.Token], and [Token] of a hold's context, return the number. A resource that remembers the
// largest number, and refuses smaller ones, is safe from a holder that was paused past its lease. A
// re-entry has the same number as its hold. A lock acquired by another call, such as LockContext,
// also gets a number, but nothing returns it.
//
// [Client.Locker] with the same name returns a plain Locker for the same lock. The two Lockers
// exclude each other, but acquisitions of the plain one have no number. A fenced lock isn't handed
// over inside the client. If an owner holds the lock through one of the two Lockers and asks for it
// through the other, it gets [ErrConflict]. If the store has no fenced locks, every error wraps
// [errors.ErrUnsupported].
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
// each other. Don't mix them. Waiters for a plain lock don't stand in line, and might not be
// notified when a fair holder releases it. A fair lock isn't handed over inside the client. If an
// owner holds the lock through one of the two Lockers and asks for it through the other, it gets
// [ErrConflict]. If the store has no fair locks, every error wraps [errors.ErrUnsupported].
func (c *Client) FairLocker(name string) *Locker {
	return newLocker(c, protocol.Kind(backend.Fair), name)
}

// Close ends the client. Waiting calls return [ErrClosed]. A waiting [Locker.Lock] panics with it,
// since it can't return an error. (End such goroutines first, or use LockContext.) [Locker.Lost]
// channels are closed, contexts of [Locker.Do] end with the cause ErrClosed, and renewals stop.
//
// Close releases nothing, since a holder might still be in its critical section. Each lock stays
// held until its holder unlocks it or its lease ends. Unlocking still works. Close logs which locks
// are held. The store's client stays open, and may be closed afterwards. Close returns once the
// goroutines of this client have ended. If one of them is stuck in the store's client, Close waits
// at most a second. It returns the error from closing the session. Further calls do nothing.
func (c *Client) Close() error {
	s := c.lock()
	if s.closed {
		c.mu.Unlock()
		return nil
	}
	s.closed = true
	c.store.Refuse(ErrClosed)
	s.reportHeld()
	for h := range s.holds() {
		h.forsake(s)
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	c.unlock()
	c.store.End(ErrClosed)
	c.mu.Lock()
	s.dismiss()
	c.unlock()
	err := c.store.Session.Close()
	c.settle()
	return err
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

// newID returns a unique client id that says where the client runs.
func newID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:16])
}

// dismiss wakes all waiting calls, so that they see that the client is closed.
func (s *state) dismiss() {
	for _, table := range s.objects {
		for _, o := range table {
			for q := range o.queues() {
				for a := q.first; a != nil; a = a.next {
					a.notify()
				}
			}
		}
	}
}

// reportHeld logs which locks are still held.
func (s *state) reportHeld() {
	const most = 10
	var names []string
	held := 0
	for h := range s.holds() {
		held++
		if name := h.claim.object.name; h.valid(s.now()) && len(names) < most &&
			!slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		s.warn("closed while locks are held: each ends with its lease, or when it is unlocked",
			"locks", held, "names", names)
	}
}

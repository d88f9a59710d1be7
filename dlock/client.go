package dlock

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
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
	prompt          bool                 // the store's steps never wait
	leavable        backend.Leavable     // nil if the store's steps can't be left
	limits          backend.Limits
	id              string
	lease           time.Duration
	handover        time.Duration
	logger          *slog.Logger
	goroutineOwners bool

	epoch   time.Time       // instants count from here, on the monotonic clock
	ctx     context.Context // ends with Close, cause ErrClosed
	end     context.CancelCauseFunc
	running sync.WaitGroup // goroutines of ours

	acquisitions sync.Pool // of those that are over
	entrants     sync.Pool // the same
	patient      atomic.Pointer[patience]

	mu      sync.Mutex // never held across I/O or a wait
	closed  bool
	number  uint64              // of the last outermost acquisition
	asked   uint64              // how many attempts to acquire were sent
	holds   map[string]*hold    // by name: the hold that this client has
	lost    map[lostKey][]*hold // of owners, not yet unlocked
	losses  []*hold             // the same, oldest first
	queues  map[string]*queue   // by name: who waits for it
	spare   *queue              // for the next that is needed
	alarms  alarms              // by time: what is due
	timer   *time.Timer         // runs ring at the first of these
	armed   instant             // when that will be
	polls   bool                // a subscription was refused, and that was logged
	delayed []func()            // what is to be done once mu is free
}

// An instant is a time on the client's monotonic clock.
type instant = time.Duration

// New returns a client of the store b. Close it when it is no longer needed. It does no I/O. It
// panics if b is nil or an option is invalid, as [time.NewTicker] does: an empty client id, a lease
// under 1 ms, or one that is shorter than the store allows.
func New(b backend.Backend, opts ...Option) *Client {
	if b == nil {
		panic("dlock: New: the backend is nil")
	}
	c := &Client{
		limits:   b.Limits(),
		id:       newID(),
		lease:    DefaultLease,
		handover: DefaultHandover,
		logger:   slog.Default(),
		epoch:    time.Now(),
		number:   mathrand.Uint64N(1 << 62), // so that two clients that share an id by mistake don't share holds
		holds:    make(map[string]*hold),
		lost:     make(map[lostKey][]*hold),
		queues:   make(map[string]*queue),
	}
	for _, opt := range opts {
		if opt == nil {
			panic("dlock: New: an option is nil")
		}
		if err := opt(c); err != nil {
			panic(fmt.Sprintf("dlock: New: %v", err))
		}
	}
	if c.lease < c.limits.MinLease {
		panic(fmt.Sprintf("dlock: New: the lease %v is shorter than the store's minimum of %v", c.lease, c.limits.MinLease))
	}
	c.ctx, c.end = context.WithCancelCause(context.Background())
	c.session = b.Open()
	c.notifier, _ = c.session.(backend.Notifier)
	c.batches, _ = c.session.(backend.BatchRenewer)
	_, c.prompt = c.session.(backend.Prompt)
	c.leavable, _ = c.session.(backend.Leavable)
	return c
}

// ID returns the client's id, by which the store knows its holders: a random UUID, or what
// [WithClientID] said.
func (c *Client) ID() string { return c.id }

// Locker returns a Locker for the lock of that name. Each call returns a new one, and each is a
// mutex of its own (see [Locker]). A name may be any text that isn't empty, and case matters;
// stores may refuse some. It is checked when the Locker is used.
func (c *Client) Locker(name string) *Locker {
	return &Locker{client: c, name: name}
}

// Close ends the client: whoever waits gets [ErrClosed], [Locker.Lost] channels are closed,
// contexts of [Locker.Do] end with that cause, and nothing is renewed any more. What is held is not
// released, since its holder may still be in its critical section; it ends with its lease, or when
// its holder unlocks it, which still works. The store's client stays open, and may be closed after
// this. An error is the session's. Close returns once the goroutines of this client have ended; one
// that is stuck in the store's client ends with that client's own timeout, and isn't waited for
// longer than a second. Further calls do nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	for _, h := range c.holds {
		c.forsake(h)
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

// dismiss lets everybody who waits look that the client is closed.
func (c *Client) dismiss() {
	c.mu.Lock()
	defer c.unlock()
	for _, q := range c.queues {
		for a := q.head; a != nil; a = a.next {
			a.notify()
		}
	}
}

// closePatience is how long Close waits for steps that are stuck in the store's client.
const closePatience = time.Second

// settle waits for our goroutines.
func (c *Client) settle() {
	done := make(chan struct{})
	go func() {
		c.running.Wait()
		if c.leavable != nil {
			c.leavable.Settle()
		}
		close(done)
	}()
	patience := time.NewTimer(closePatience)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
}

// background runs f in a goroutine that Close waits for. c.mu is held. It does nothing if the
// client is closed.
func (c *Client) background(f func()) {
	if !c.closed {
		c.running.Go(f)
	}
}

// unlock unlocks c.mu and does what had to wait for that.
func (c *Client) unlock() {
	delayed := c.delayed
	c.delayed = nil
	c.mu.Unlock()
	for _, f := range delayed {
		f()
	}
}

// later does f once c.mu, which is held, is free: c.mu is never held while code that isn't ours
// runs.
func (c *Client) later(f func()) { c.delayed = append(c.delayed, f) }

// warn logs once c.mu, which is held, is free.
func (c *Client) warn(msg string, args ...any) {
	c.later(func() { c.logger.Warn("dlock: "+msg, args...) })
}

func (c *Client) now() instant { return time.Since(c.epoch) }

// nextOwner returns who the next outermost acquisition is, on the wire. No two are the same. c.mu
// is held.
func (c *Client) nextOwner() string {
	c.number++
	owner := make([]byte, 0, 64)
	owner = append(append(owner, c.id...), ':')
	return string(strconv.AppendUint(owner, c.number, 10))
}

// stored returns the lease that the store is asked for where the caller asks for d.
func (c *Client) stored(d time.Duration) time.Duration {
	d = max(d, c.limits.MinLease)
	step := max(c.limits.LeaseStep, time.Millisecond)
	return (d + step - 1) / step * step
}

// newID returns a random (version 4) UUID, RFC 9562.
func newID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

package pubsub

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A stage is a client whose servers are played by the test: it accepts each connection, reads its
// commands and answers them.
type stage struct {
	mu      sync.Mutex
	at      map[string]string // the address of the server that has a channel; others are at ""
	lost    error             // Locate fails with it
	reloads int
	conns   chan *actor
}

func newStage() *stage {
	return &stage{at: make(map[string]string), conns: make(chan *actor, 1000)}
}

func (c *stage) Locate(_ context.Context, channel string) (Server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addr := c.at[channel]
	return Server{Addr: addr, Connect: func(r *Receiver) Conn {
		a := &actor{
			Receiver: r,
			addr:     addr,
			lines:    make(chan line),
			lost:     make(chan error, 1),
			closed:   make(chan struct{}),
		}
		c.conns <- a
		return a
	}}, c.lost
}

func (c *stage) Reload(context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reloads++
}

func (*stage) Kind(err error) error { return err }

// reloaded returns how often Reload was called since the last time.
func (c *stage) reloaded() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.reloads = 0 }()
	return c.reloads
}

// put says where channels are, from now on.
func (c *stage) put(addr string, channels ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range channels {
		c.at[name] = addr
	}
}

// An actor plays a server on one connection.
type actor struct {
	*Receiver
	addr   string
	lines  chan line
	lost   chan error
	closed chan struct{}

	longest int // line that it obeyed, in channels
}

// A line is what a server is told at once. It is answered once.
type line struct {
	verb   Verb
	orders [][]string
	answer chan<- reply
}

type reply struct {
	refusals []error
	err      error
}

func (a *actor) Tell(
	ctx context.Context, verb Verb, orders [][]string,
) (refusals []error, err error) {
	answer := make(chan reply, 1)
	select {
	case a.lines <- line{verb, orders, answer}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case r := <-answer:
		return r.refusals, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *actor) Lost() <-chan error { return a.lost }
func (a *actor) Close()             { close(a.closed) }

// hears returns what the server is told next, about these channels in any order.
func (a *actor) hears(t *testing.T, verb Verb, channels ...string) line {
	t.Helper()
	l := <-a.lines
	got := slices.Sorted(slices.Values(slices.Concat(l.orders...)))
	slices.Sort(channels)
	if l.verb != verb || !slices.Equal(got, channels) {
		t.Fatalf("the server was told to %s %q, want to %s %q", l.verb, got, verb, channels)
	}
	return l
}

// does what it is told.
func (a *actor) does(t *testing.T, verb Verb, channels ...string) {
	t.Helper()
	l := a.hears(t, verb, channels...)
	a.confirm(l)
	l.answer <- reply{}
}

// refuses what it is told.
func (a *actor) refuses(t *testing.T, err error, verb Verb, channels ...string) {
	t.Helper()
	l := a.hears(t, verb, channels...)
	refusals := make([]error, len(l.orders))
	for i := range refusals {
		refusals[i] = err
	}
	l.answer <- reply{refusals: refusals}
}

// confirm confirms each channel.
func (a *actor) confirm(l line) {
	for _, name := range slices.Concat(l.orders...) {
		switch l.verb {
		case Subscribe:
			a.Subscribed(name)
		case Unsubscribe:
			a.Unsubscribed(name)
		}
	}
}

// obeys does all that it is told from now on, until the connection is closed. Each time takes a
// while.
func (a *actor) obeys(while time.Duration) {
	go func() {
		for {
			select {
			case l := <-a.lines:
				a.longest = max(a.longest, len(slices.Concat(l.orders...)))
				time.Sleep(while)
				a.confirm(l)
				l.answer <- reply{}
			case <-a.closed:
				return
			}
		}
	}()
}

// hearsNothing says that the server is told nothing more for now.
func (a *actor) hearsNothing(t *testing.T) {
	t.Helper()
	synctest.Wait()
	select {
	case l := <-a.lines:
		t.Fatalf("the server was told to %s %q", l.verb, l.orders)
	default:
	}
}

// A party calls Subscribe.
type party struct {
	sub    backend.Subscription
	err    error
	done   chan struct{} // closed when Subscribe has returned
	wakeup []Meaning

	changes []error // what Changed was told
}

// decode understands two messages.
func decode(message string) (Meaning, bool) {
	switch message {
	case "0":
		return Freed, true
	case "1":
		return Kept, true
	default:
		return 0, false
	}
}

// subscribe calls Subscribe in another goroutine.
func subscribe(t *testing.T, s *Subscriber, channel string) *party {
	p := &party{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.sub, p.err = s.Subscribe(t.Context(), channel, decode, func(w Meaning) {
			p.wakeup = append(p.wakeup, w)
		},
			func(broken error) { p.changes = append(p.changes, broken) })
	}()
	return p
}

// stands waits until the party is subscribed.
func (p *party) stands(t *testing.T) {
	t.Helper()
	<-p.done
	if p.err != nil {
		t.Fatalf("subscribe: %v", p.err)
	}
}

// waits says that Subscribe has not returned.
func (p *party) waits(t *testing.T) {
	t.Helper()
	synctest.Wait()
	select {
	case <-p.done:
		t.Fatalf("subscribe has returned; its error is %v", p.err)
	default:
	}
}

// told says what was told of changes since the last time.
func (p *party) told(t *testing.T, want ...error) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(p.changes, want) {
		t.Fatalf("told of changes %v, want %v", p.changes, want)
	}
	p.changes = nil
}

// woken says which wake-ups there were since the last time.
func (p *party) woken(t *testing.T, want ...Meaning) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(p.wakeup, want) {
		t.Fatalf("woken with %v, want %v", p.wakeup, want)
	}
	p.wakeup = nil
}

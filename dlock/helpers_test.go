package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/membackend"
)

// lineUp puts a call in its queue.
func lineUp(a *acquisition) {
	s := a.client.lock()
	defer a.client.unlock()
	a.enqueue(s)
}

// take has a call take what it was handed.
func take(ctx context.Context, a *acquisition) (*hold, error) {
	over := a.client.over(ctx)
	s := a.client.lock()
	defer a.client.unlock()
	return a.take(s, over)
}

// share has a call join other readers.
func share(a *acquisition) *hold {
	s := a.client.lock()
	defer a.client.unlock()
	return a.share(s)
}

func succeed(context.Context) error { return nil }

// closed fails the test if the end of some hold wasn't told.
func (l *ledger) closed(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) > 0 {
		t.Errorf("holds whose end wasn't told: %v", l.open)
	}
}

// recovered returns what a function panics with.
func recovered(f func()) (what any) {
	defer func() { what = recover() }()
	f()
	return nil
}

// quiet is a logger for tests in which losses are expected.
func quiet() Option { return WithLogger(slog.New(slog.DiscardHandler)) }

// empty fails the test if a client that nobody uses still has something in its tables.
func empty(t *testing.T, c *Client) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for table, n := range map[string]int{
		"locks":               len(c.state.objects[protocol.Locks]),
		"read-write locks":    len(c.state.objects[protocol.ReadWrites]),
		"protocol.Semaphores": len(c.state.objects[protocol.Semaphores]),
		"alarms":              len(c.state.alarms.heap),
		"lost":                len(c.state.lost), "losses": len(c.state.losses),
		"ends":    len(c.state.ends),
		"records": len(c.state.records),
	} {
		if n != 0 {
			t.Errorf("%d entries in the table of %s of an idle client", n, table)
		}
	}
}

// heldOf returns the hold of a plain lock, or nil. The client's mutex is held.
func heldOf(c *Client, name string) *hold {
	if o := c.state.object(protocol.Kind(backend.Exclusive), name); o != nil {
		return o.alone
	}
	return nil
}

func mustTry(t *testing.T, l *Locker, opts ...AcquireOption) {
	t.Helper()
	if ok, err := l.TryLock(t.Context(), opts...); !ok || err != nil {
		t.Fatalf("TryLock(%q) = %v, %v", l.Name(), ok, err)
	}
}

var errCut = &backend.Error{Kind: backend.Unknown, Err: errors.New("the connection was cut")}

// A bench is a client and the store that it is on, in a bubble.
type bench struct {
	*testing.T
	*script
	client *Client
	direct backend.Session
}

// onBench runs a test in a bubble. prepare sets the store up.
func onBench(t *testing.T, prepare func(*script), run func(b *bench), opts ...Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		m := newScript(mem).with(backend.Limits{}).but(onlySteps)
		prepare(m)
		c := New(m, append([]Option{quiet()}, opts...)...)
		defer c.Close()
		run(&bench{t, m, c, mem.Open()})
	})
}

// owner returns a context that names an owner.
func (b *bench) owner() context.Context { return WithOwner(b.Context(), NewOwner()) }

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// wantFree fails the test if the lock "x" is held in the store.
func (b *bench) wantFree(when string) {
	b.Helper()
	res, err := b.direct.Look(b.Context(), backend.LookRequest{Name: "x"})
	b.must(err)
	if res.Held {
		b.Errorf("%s: the store holds the lock, for %v more", when, res.Remaining)
	}
}

func fairClients(t *testing.T, store backend.Backend, n int) []*Client {
	clients := make([]*Client, n)
	for i := range clients {
		clients[i] = New(store, quiet())
		t.Cleanup(func() { clients[i].Close() })
	}
	return clients
}

func mustTryNot(t *testing.T, l *Locker) {
	t.Helper()
	if ok, err := l.TryLock(t.Context()); ok || err != nil {
		t.Errorf("TryLock = %v, %v", ok, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// logs keeps what is logged.
type logs struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(p)
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// count returns how many lines have that in their message, and are of that name.
func (l *logs) count(msg, name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for line := range strings.Lines(l.lines.String()) {
		if strings.Contains(line, msg) && strings.Contains(line, "name="+name+" ") {
			n++
		}
	}
	return n
}

// A ledger is what a Trace is told, one line for each event, and of which holds the end wasn't
// told.
type ledger struct {
	mu    sync.Mutex
	lines []string
	open  map[string]int // by name and holder
	calls int            // acquiring calls under way
}

func (l *ledger) note(hold string, n int, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
	if l.open == nil {
		l.open = make(map[string]int)
	}
	if l.open[hold] += n; l.open[hold] == 0 {
		delete(l.open, hold)
	}
}

// trace returns a Trace that writes into the ledger.
func (l *ledger) trace() Option {
	return WithTrace(&Trace{
		AcquireStart: func(ctx context.Context, e AcquireStart) context.Context {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.calls++
			return ctx
		},
		AcquireDone: func(_ context.Context, e AcquireDone) {
			n := 0
			if e.Outcome == OutcomeAcquired && e.Via != ViaReentry {
				n = 1
			}
			l.note(e.Name+e.HolderID, n, "lock %v %v %v", e.Kind, e.Outcome, e.Via)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.calls--
		},
		ReleaseDone: func(_ context.Context, e ReleaseDone) {
			n := 0
			if e.Outcome == UnlockReleased || e.Outcome == UnlockHandedOn ||
				e.Outcome == UnlockFailed || e.Outcome == UnlockForsaken {
				n = -1
			}
			l.note(e.Name+e.HolderID, n, "unlock %v %v", e.Kind, e.Outcome)
		},
		Lost: func(e *Loss) { l.note(e.Name+e.Holder, -1, "lost %v %v", e.Kind, e.Reason) },
	})
}

// want fails the test if these aren't the events since the last call.
func (l *ledger) want(t *testing.T, lines ...string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if got, want := strings.Join(l.lines, "\n"), strings.Join(lines, "\n"); got != want {
		t.Errorf("told of\n%s\nwant\n%s", got, want)
	}
	l.lines = nil
}

// balance fails the test if something was told to have begun that hasn't ended.
func (l *ledger) balance(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) > 0 || l.calls != 0 {
		t.Errorf("begun and not ended: holds %v, %d calls", l.open, l.calls)
	}
}

// onScript runs a test with a client of a scripted store, and another of the same.
func onScript(t *testing.T, test func(t *testing.T, b *script, c, other *Client), opts ...Option) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		b := newScript(store)
		c, other := New(b, append(opts, quiet())...), New(store, quiet())
		defer c.Close()
		defer other.Close()
		test(t, b, c, other)
	})
}

// wantFree checks that another client gets to write at once.
func wantFree(t *testing.T, other *Client, name string) {
	t.Helper()
	w := other.RWLocker(name).Writer()
	if ok, err := w.TryLock(t.Context()); !ok || err != nil {
		t.Errorf("nobody has the lock, and another gets it? %v, %v", ok, err)
		return
	}
	must(t, w.UnlockContext(t.Context()))
}

// over says whether a channel is closed.
func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// clientsOf returns clients of a store, with ids a, b, and so on.
func clientsOf(t *testing.T, store backend.Backend, n int, opts ...Option) []*Client {
	t.Helper()
	var all []*Client
	for i := range n {
		c := New(store, append([]Option{quiet(), WithClientID(string(rune('a' + i)))}, opts...)...)
		t.Cleanup(func() { c.Close() })
		all = append(all, c)
	}
	return all
}

// listen subscribes another client to x. It is counted among the waiters, and never comes.
func listen(t *testing.T, b backend.Backend) backend.Subscription {
	t.Helper()
	sub, err := b.Open().(backend.Notifier).Subscribe(t.Context(), backend.SubscribeRequest{
		Name: "x", Wake: func(backend.Wakeup) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// lockers returns a Locker of a client for each of the names.
func lockers(c *Client, names ...string) []*Locker {
	var all []*Locker
	for _, name := range names {
		all = append(all, c.Locker(name))
	}
	return all
}

// pass locks and unlocks.
func pass(l sync.Locker) {
	l.Lock()
	defer l.Unlock()
}

var errSevered = &backend.Error{Kind: backend.Unknown, Err: errors.New("connection refused")}

func mustAcquire(t *testing.T, s *Semaphore, n int, opts ...AcquireOption) *Hold {
	t.Helper()
	h, err := s.Acquire(t.Context(), n, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustRelease(t *testing.T, h *Hold) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A tenant locks in a goroutine of its own, and unlocks when it is told.
type tenant struct {
	l     *Locker
	ctx   context.Context
	in    chan error // what LockContext said
	leave func() error
}

// wait starts a tenant, which queues up.
func wait(ctx context.Context, l *Locker, opts ...AcquireOption) *tenant {
	w := &tenant{l: l, ctx: ctx, in: make(chan error, 1)}
	w.leave = func() error { return l.UnlockContext(ctx) }
	go func() { w.in <- l.LockContext(ctx, opts...) }()
	synctest.Wait()
	return w
}

// isIn says whether the tenant has the lock.
func (w *tenant) isIn(t *testing.T) bool {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-w.in:
		if err != nil {
			t.Fatalf("LockContext: %v", err)
		}
		return true
	default:
		return false
	}
}

// mustBeIn checks that the tenant has got in, without time having passed.
func (w *tenant) mustBeIn(t *testing.T) {
	t.Helper()
	if !w.isIn(t) {
		t.Fatal("the next in the queue has not got in")
	}
}

func mustUnlock(t *testing.T, ctx context.Context, l *Locker) {
	t.Helper()
	if err := l.UnlockContext(ctx); err != nil {
		t.Fatal(err)
	}
}

// deaf is a notifier whose subscriptions are confirmed late.
type deaf struct{}

package etcdbackend_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

// place is how long notes last in these tests.
const place = 20 * time.Second

// TestNoteKeepsReadersOut: those that come after a waiting writer, and nobody else.
func TestNoteKeepsReadersOut(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	a.gets(backend.Write)
	began := time.Now()
	c.fails(backend.Read, lease, waits(time.Millisecond, 0)) // came first
	b.fails(backend.Write, lease, waits(time.Millisecond, place))
	a.gets(backend.Read)
	a.releases(backend.Write, backend.Freed)
	a.gets(backend.Read) // reads already
	late := party{t, a.s, "late"}
	late.fails(backend.Read, place)
	late.fails(backend.Read, place, waits(10*time.Millisecond, 0))
	c.gets(backend.Read, waits(time.Since(began), 0))
	late.fails(backend.Read, place, waits(20*time.Millisecond, 0))
	a.releases(backend.Read, backend.Freed)
	c.releases(backend.Read, backend.Freed)
	late.fails(backend.Read, place, waits(30*time.Millisecond, 0))
	b.gets(backend.Write, waits(time.Second, place))
	late.fails(backend.Read, lease, waits(time.Second, 0))
	b.gets(backend.Read)
	b.releases(backend.Write, backend.Freed)
	late.gets(backend.Read, waits(time.Second, 0))
	late.releases(backend.Read, backend.Freed)
	b.releases(backend.Read, backend.Freed)
	nothingLeft(t, admin, a, b, c)
}

// TestNoteSaysSinceWhen: a session that knows nothing of a reader goes by for how long it says to
// have waited.
func TestNoteSaysSinceWhen(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	for _, w := range []struct {
		writer, reader time.Duration
		out            bool
	}{
		{0, 0, true}, {0, time.Minute, false}, {time.Minute, 0, true},
		{time.Minute, time.Second, true},
		{time.Minute, 2 * time.Minute, false}, {time.Minute, 55 * time.Second, true},
		{time.Minute, 65 * time.Second, false},
	} {
		a.gets(backend.Read)
		b.fails(backend.Write, lease, waits(w.writer, place))
		if w.out {
			c.fails(backend.Read, place, waits(w.reader, 0))
			c.releases(backend.Read, backend.NotHeld)
		} else {
			c.gets(backend.Read, waits(w.reader, 0))
			c.releases(backend.Read, backend.Freed)
		}
		a.releases(backend.Read, backend.Freed)
		b.releases(backend.Write, backend.NotHeld) // gives up
		nothingLeft(t, admin, a, b, c)
	}
	// A writer that asks again keeps the earliest start of its wait that it has said.
	a.gets(backend.Read)
	for _, waited := range []time.Duration{time.Minute, 0, 2 * time.Minute, time.Minute} {
		b.fails(backend.Write, lease, waits(waited, place))
		c.fails(backend.Read, place, waits(50*time.Second, 0))
	}
	c.fails(backend.Read, place, waits(110*time.Second, 0))
	c.gets(backend.Read, waits(130*time.Second, 0))
	c.releases(backend.Read, backend.Freed)
	b.releases(backend.Write, backend.NotHeld)
	// Where the writer has waited elsewhere before it left a note, that the note is younger doesn't
	// count.
	a.gets(backend.Read)
	b.fails(backend.Write, lease, waits(0, place))
	c.fails(backend.Read, place, waits(time.Millisecond, 0))
	b.releases(backend.Write, backend.NotHeld)
	b.fails(backend.Write, lease, waits(time.Minute, place))
	c.fails(backend.Read, place, waits(5*time.Millisecond, 0))
}

// TestNoteEnds: the note of a writer that died ends with its lease, and that of one that gave up
// ends at once. Waiters are told.
func TestNoteEnds(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	told := make(chan bool, 100)
	sub, err := c.s.Subscribe(t.Context(), backend.SubscribeRequest{
		Kind: backend.Write, Name: "n", Wake: func(backend.Wakeup) { told <- true },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	wakes := func(what string) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(testservers.Patience):
			t.Fatalf("%s wakes nobody", what)
		}
	}
	a.gets(backend.Read)
	for range 3 {
		b.fails(backend.Write, lease, waits(time.Second, time.Hour))
		c.fails(backend.Read, time.Hour)
		b.releases(backend.Write, backend.NotHeld)
		wakes("a writer that gives up")
		c.gets(backend.Read)
		c.releases(backend.Read, backend.Freed)
		wakes("a reader that leaves")
	}
	b.fails(backend.Write, lease, waits(time.Second, time.Second))
	before := len(keysOf(t, admin))
	if res := c.try(backend.Read); res.Acquired || res.Remaining <= 0 ||
		res.Remaining > 3*time.Second {
		t.Errorf("a reader that comes after a writer: %+v", res)
	}
	wakes("the end of a dead writer's note")
	c.gets(backend.Read)
	if after := len(keysOf(t, admin)); after != before { // a reader more, and no note
		t.Errorf("%d keys, want %d", after, before)
	}
	c.releases(backend.Read, backend.Freed)
	wakes("a reader that leaves")
	a.releases(backend.Read, backend.Freed)
	wakes("the last reader")

	// The end of a write means everybody; that somebody else writes now, nobody.
	a.gets(backend.Write)
	b.fails(backend.Write, lease, waits(time.Second, place))
	a.releases(backend.Write, backend.Freed)
	wakes("the end of a write")
	b.gets(backend.Write, waits(time.Second, place))
	b.gets(backend.Read)
	a.forces(backend.Write, true)
	wakes("a forced write")
	b.gets(backend.Write)
	b.gets(backend.Read)
	b.releases(backend.Write, backend.Freed)
	wakes("a downgrade")
	a.gets(backend.Read)
	a.forces(backend.Read, true)
	wakes("forced reads")
	select {
	case <-told:
		t.Error("woken once more")
	default:
	}
}

// TestNotesAreKept: a writer that asks again keeps its note, on the same lease. A writer that gives
// up leaves none.
func TestNotesAreKept(t *testing.T) {
	t.Parallel()
	a, b, _, admin := parties(t)
	a.gets(backend.Read)
	b.fails(backend.Write, lease, waits(0, place))
	note := func() int64 {
		kv := get(t, admin, key("n")+"\x01waits/"+bob)
		if kv == nil {
			t.Fatal("there is no note")
		}
		return kv.Lease
	}
	first := note()
	left := func() int64 {
		return wiretest.Must[*clientv3.LeaseTimeToLiveResponse](t)(
			admin.TimeToLive(t.Context(), clientv3.LeaseID(first))).TTL
	}
	begun := left()
	testservers.Until(t, "some of it is over", func() bool { return left() < begun })
	last := left()
	b.fails(backend.Write, lease, waits(time.Second, place))
	testservers.Until(t, "it begins anew", func() bool { return left() > last })
	if note() != first {
		t.Error("the note has another lease")
	}
	wiretest.Must[*clientv3.LeaseRevokeResponse](t)(
		admin.Revoke(t.Context(), clientv3.LeaseID(first)))
	b.fails(backend.Write, lease, waits(time.Second, place))
	note()
	b.fails(backend.Write, lease, waits(time.Second, 2*place)) // with another lease
	note()
	b.fails(backend.Write, lease) // doesn't go on, but hasn't given up
	note()
	b.releases(backend.Write, backend.NotHeld)
	a.releases(backend.Read, backend.Freed)
	nothingLeft(t, admin, a, b)
}

// A lostRequest is a transaction of a client's that would write a key with a certain part. It has
// no answer.
type lostRequest struct {
	part       string
	carriedOut bool
	armed      atomic.Bool
	late       func() error // sends it, if it wasn't carried out
}

func (l *lostRequest) install(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(func(
		ctx context.Context, method string, req, res any, cc *grpc.ClientConn,
		next grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if !puts(req) ||
			!strings.Contains(string(req.(*pb.TxnRequest).Success[0].GetRequestPut().Key),
				l.part) || !l.armed.CompareAndSwap(true, false) {
			return next(ctx, method, req, res, cc, opts...)
		}
		l.late = func() error { return next(context.WithoutCancel(ctx), method, req, res, cc) }
		if l.carriedOut {
			if err := l.late(); err != nil {
				return err
			}
		}
		for _, opt := range opts {
			if p, ok := opt.(grpc.PeerCallOption); ok {
				p.PeerAddr.Addr = &net.TCPAddr{} // it was sent
			}
		}
		return rpctypes.ErrGRPCTimeout
	}))
}

// TestLateReadsAndWrites: a request that has no answer, and was taken back, does nothing when it
// comes late: neither lock nor leave a note.
func TestLateReadsAndWrites(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	other := party{t, open(t, connect(t, server.Addr)), bob}
	for _, c := range []struct {
		what string
		kind backend.Kind
		part string // of the key
	}{
		{"a read", backend.Read, "read/"},
		{"a write", backend.Write, "n"},
		{"a fenced lock", backend.Fenced, "n"},
		{"a note", backend.Write, "waits/"},
	} {
		for _, carriedOut := range []bool{false, true} {
			l := &lostRequest{part: c.part, carriedOut: carriedOut}
			p := party{t, open(t, connect(t, server.Addr, l.install)), alice}
			if c.part == "waits/" {
				other.gets(backend.Read)
			}
			l.armed.Store(true)
			_, err := p.s.Acquire(t.Context(), backend.AcquireRequest{
				Kind: c.kind, Name: "n", Owner: alice, Lease: lease, Waited: time.Second,
				Place: place,
			})
			wantKind(t, err, backend.Unknown)
			want := backend.NotHeld
			if carriedOut && c.part != "waits/" {
				want = backend.Freed
				if res := p.gets(c.kind); c.kind != backend.Read && res.Count != 2 {
					t.Errorf("%s that was carried out counts %d with another", c.what, res.Count)
				}
				if c.kind != backend.Read {
					p.releases(c.kind, backend.Left)
				}
			}
			p.releases(c.kind, want)
			before := state(t, admin)
			if err := l.late(); !carriedOut && status.Code(err) != codes.NotFound {
				t.Errorf("%s that comes late: %v; want: no such lease", c.what, err)
			}
			if after := state(t, admin); after != before {
				t.Errorf("%s that comes late has changed\n%sto\n%s", c.what, before, after)
			}
			if c.part == "waits/" {
				other.releases(backend.Read, backend.Freed)
			}
			nothingLeft(t, admin, p, other)
			p.s.Close()
			testservers.Until(t, "Close gives back the leases", func() bool {
				return leases(t, admin, other.s) == 0
			})
		}
	}
}

// TestLateNote: when its writer has got in a note can't be left any more, though the lease is used
// for another hold.
func TestLateNote(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	l := &lostRequest{part: "waits/"}
	p := party{t, open(t, connect(t, server.Addr, l.install)), alice}
	for _, kind := range []backend.Kind{backend.Read, backend.Write} {
		other := party{t, open(t, connect(t, server.Addr)), bob}
		other.gets(kind)
		p.fails(backend.Write, lease, waits(0, lease))
		l.armed.Store(true)
		_, err := p.s.Acquire(t.Context(), backend.AcquireRequest{
			Kind: backend.Write, Name: "n", Owner: alice, Lease: lease, Waited: time.Second,
			Place: lease,
		})
		wantKind(t, err, backend.Unknown)
		other.releases(kind, backend.Freed)
		p.gets(backend.Write, waits(2*time.Second, lease))
		if err := l.late(); err != nil {
			t.Error(err)
		}
		if keys := keysOf(t, admin); len(keys) != 1 {
			t.Errorf("the keys are %q, want that of the lock", keys)
		}
		p.releases(backend.Write, backend.Freed)
		nothingLeft(t, admin, p, other)
		other.s.Close()
		testservers.Until(t, "Close gives back the leases", func() bool {
			return leases(t, admin, p.s) == 0
		})
	}
}

// TestSilentMembers: a request that a member doesn't answer is sent to another member, which tells
// whether it was carried out.
func TestSilentMembers(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	for _, kind := range []backend.Kind{backend.Fenced, backend.Read, backend.Write} {
		for _, carriedOut := range []bool{false, true} {
			var silent atomic.Bool
			var first invoke
			p := party{t, open(t, connect(t, server.Addr, intercept(func(
				ctx context.Context, req any, send invoke,
			) error {
				if !puts(req) || !silent.CompareAndSwap(true, false) {
					return send(ctx)
				}
				first = send
				if carriedOut {
					if err := send(ctx); err != nil {
						return err
					}
				}
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			}))), alice}
			silent.Store(true)
			p.gets(kind)
			if kind != backend.Read {
				p.gets(kind)
				p.sees(kind, true, 2)
				p.releases(kind, backend.Left)
			}
			p.forces(kind, true)
			if err := first(t.Context()); status.Code(err) != codes.NotFound {
				t.Errorf("%v that comes late: %v; want: no such lease", kind, err)
			}
			p.releases(kind, backend.NotHeld)
			nothingLeft(t, admin, p)
			p.s.Close()
			testservers.Until(t, "Close gives back the leases", func() bool {
				return leases(t, admin) == 0
			})
		}
	}
}

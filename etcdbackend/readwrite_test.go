package etcdbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

const carol = "33333333-3333-3333-3333-333333333333:4"

// A party is an owner and its session. Its steps are about the lock "n".
type party struct {
	t     *testing.T
	s     session
	owner string
}

func (p party) try(
	kind backend.Kind, change ...func(*backend.AcquireRequest),
) backend.AcquireResult {
	p.t.Helper()
	req := backend.AcquireRequest{
		Kind: kind, Name: "n", Owner: p.owner, Lease: lease, Permits: 1, Limit: 1,
	}
	for _, c := range change {
		c(&req)
	}
	return wiretest.Must[backend.AcquireResult](p.t)(p.s.Acquire(p.t.Context(), req))
}

// waits says for how long an owner has waited, and that it goes on if place isn't zero.
func waits(waited, place time.Duration) func(*backend.AcquireRequest) {
	return func(req *backend.AcquireRequest) { req.Waited, req.Place = waited, place }
}

func (p party) gets(
	kind backend.Kind, change ...func(*backend.AcquireRequest),
) backend.AcquireResult {
	p.t.Helper()
	res := p.try(kind, change...)
	if !res.Acquired {
		p.t.Fatalf("%.8s doesn't get the lock to %v: %+v", p.owner, kind, res)
	}
	return res
}

// fails checks that the lock isn't acquired, and for how long it will last.
func (p party) fails(
	kind backend.Kind, atMost time.Duration, change ...func(*backend.AcquireRequest),
) {
	p.t.Helper()
	if res := p.try(kind, change...); res.Acquired || res.Remaining <= atMost/2 ||
		res.Remaining > atMost+time.Second {
		p.t.Fatalf("%.8s wants the lock to %v, and: %+v; want it to last for %v", p.owner, kind,
			res, atMost)
	}
}

func (p party) releases(kind backend.Kind, want backend.ReleaseOutcome) {
	p.t.Helper()
	res := wiretest.Must[backend.ReleaseResult](p.t)(
		p.s.Release(p.t.Context(), backend.ReleaseRequest{
			Kind: kind, Name: "n", Owner: p.owner, Lease: lease, Permits: 1,
		}))
	if res.Outcome != want {
		p.t.Fatalf("%.8s releases what it has to %v: %v, want %v", p.owner, kind, res.Outcome, want)
	}
}

func (p party) renews(kind backend.Kind, want bool) {
	p.t.Helper()
	res := wiretest.Must[backend.RenewResult](p.t)(
		p.s.Renew(p.t.Context(), backend.RenewRequest{
			Kind: kind, Name: "n", Owner: p.owner, Lease: lease, Permits: 1,
		}))
	if res.Held != want {
		p.t.Fatalf("%.8s renews what it has to %v: held %v, want %v", p.owner, kind, res.Held, want)
	}
}

func (p party) forces(kind backend.Kind, want bool) {
	p.t.Helper()
	res := wiretest.Must[backend.ForceReleaseResult](p.t)(
		p.s.ForceRelease(p.t.Context(), backend.ForceReleaseRequest{Kind: kind, Name: "n"}))
	if res.Released != want {
		p.t.Fatalf("forcing %v: released %v, want %v", kind, res.Released, want)
	}
}

func (p party) sees(kind backend.Kind, held bool, count int) backend.LookResult {
	p.t.Helper()
	res := wiretest.Must[backend.LookResult](p.t)(p.s.Look(p.t.Context(), backend.LookRequest{
		Kind: kind, Name: "n", Owner: p.owner,
	}))
	if res.Held != held || res.Count != count || held != (res.Remaining != 0) {
		p.t.Fatalf("%.8s looks at %v: %+v, want held %v, count %d", p.owner, kind, res, held, count)
	}
	return res
}

// parties returns three owners with a session each, and a client that looks at the server.
func parties(t *testing.T) (a, b, c party, admin *clientv3.Client) {
	t.Helper()
	server := testservers.Etcd(t)
	admin = connect(t, server.Addr)
	all := make([]party, 3)
	for i, owner := range []string{alice, bob, carol} {
		all[i] = party{t, open(t, connect(t, server.Addr, unhurried)), owner}
	}
	return all[0], all[1], all[2], admin
}

// nothingLeft checks that no key is left, no lease but those for the next holds, and that no hold
// is remembered.
func nothingLeft(t *testing.T, admin *clientv3.Client, all ...party) {
	t.Helper()
	var sessions []session
	for _, p := range all {
		sessions = append(sessions, p.s)
		if n := etcdbackend.Remembered(p.s); n != 0 {
			t.Errorf("%d holds of %.8s are remembered", n, p.owner)
		}
	}
	if keys := keysOf(t, admin); len(keys) != 0 {
		t.Errorf("the keys %q are left", keys)
	}
	if n := leases(t, admin, sessions...); n != 0 {
		t.Errorf("%d leases are left", n)
	}
}

func keysOf(t *testing.T, admin *clientv3.Client) (keys []string) {
	t.Helper()
	for _, kv := range wiretest.Must[*clientv3.GetResponse](t)(
		admin.Get(t.Context(), "", clientv3.WithPrefix())).Kvs {
		keys = append(keys, string(kv.Key))
	}
	return keys
}

// TestFenced: the number of a hold is the revision in which it began.
func TestFenced(t *testing.T) {
	t.Parallel()
	a, b, _, admin := parties(t)
	last := uint64(0)
	grows := func(p party) {
		t.Helper()
		token := p.gets(backend.Fenced).Token
		if token <= last || token != uint64(get(t, admin, key("n")).CreateRevision) {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
	}
	grows(a)
	longer := func(req *backend.AcquireRequest) { req.Lease = 2 * lease }
	for _, change := range []func(*backend.AcquireRequest){waits(0, 0), longer} {
		if res := a.gets(backend.Fenced, change); res.Token != last {
			t.Errorf("a re-entry has token %d, want %d", res.Token, last)
		}
	}
	a.renews(backend.Fenced, true)
	b.fails(backend.Fenced, lease)
	b.fails(backend.Exclusive, lease)
	again := party{t, b.s, alice} // whose session knows nothing of the hold
	if res := again.gets(backend.Fenced); res.Token != last || res.Count != 4 {
		t.Errorf("a re-entry from elsewhere: %+v, want token %d", res, last)
	}
	b.forces(backend.Fenced, true)
	grows(b)
	b.releases(backend.Fenced, backend.Freed)
	if res := a.gets(backend.Exclusive); res.Token != 0 {
		t.Errorf("a plain lock has the token %d", res.Token)
	}
	b.fails(backend.Fenced, lease)
	a.releases(backend.Exclusive, backend.Freed)
	grows(a)
	// it has run out
	wiretest.Must[*clientv3.LeaseRevokeResponse](t)(
		admin.Revoke(t.Context(), clientv3.LeaseID(get(t, admin, key("n")).Lease)))
	grows(b)
	a.renews(backend.Fenced, false)
	a.releases(backend.Fenced, backend.NotHeld)
	b.releases(backend.Fenced, backend.Freed)
	nothingLeft(t, admin, a, b)
}

// TestReadWriteValues: this is what others read, and what other versions must understand.
func TestReadWriteValues(t *testing.T) {
	t.Parallel()
	a, b, _, admin := parties(t)
	want := func(all map[string]string) {
		t.Helper()
		if keys := keysOf(t, admin); len(keys) != len(all) {
			t.Errorf("the keys are %q, want %v", keys, all)
		}
		for name, value := range all {
			if kv := get(t, admin, key(name)); kv == nil || string(kv.Value) != value ||
				kv.Lease == 0 {
				t.Errorf("%q is %v, want %s and a lease", name, kv, value)
			}
		}
	}
	read := func(owner string) (string, string) {
		return "n\x01read/" + owner, fmt.Sprintf(`{"owner":%q,"count":1,"kind":"read"}`, owner)
	}
	aKey, aRead := read(alice)
	bKey, bRead := read(bob)
	a.gets(backend.Read)
	b.gets(backend.Read)
	want(map[string]string{aKey: aRead, bKey: bRead})
	a.gets(backend.Read)
	b.releases(backend.Read, backend.Freed)
	want(map[string]string{aKey: aRead})
	b.fails(backend.Write, lease, waits(1500*time.Millisecond, time.Minute))
	want(map[string]string{
		aKey: aRead, "n\x01waits/" +
			bob: fmt.Sprintf(`{"owner":%q,"kind":"waits","waited_ms":1500,"first_ms":1500}`, bob),
	})
	a.releases(backend.Read, backend.Freed)
	b.gets(backend.Write, waits(3*time.Second, time.Minute))
	b.gets(backend.Write)
	b.gets(backend.Read)
	want(map[string]string{
		"n": fmt.Sprintf(`{"owner":%q,"count":2,"kind":"write"}`, bob), bKey: bRead,
	})
	b.releases(backend.Write, backend.Left)
	b.releases(backend.Write, backend.Freed)
	want(map[string]string{bKey: bRead})
	b.releases(backend.Read, backend.Freed)
	nothingLeft(t, admin, a, b)
}

// TestReadersAndWriters: readers stand together, and a writer only with its own reads.
func TestReadersAndWriters(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	a.gets(backend.Read)
	b.gets(backend.Read)
	c.fails(backend.Write, lease)
	a.fails(backend.Write, lease) // nor does a reader become a writer
	a.releases(backend.Read, backend.Freed)
	a.releases(backend.Read, backend.NotHeld)
	b.fails(backend.Write, lease)
	c.sees(backend.Read, true, 0)
	b.sees(backend.Read, true, 1)
	b.sees(backend.Write, false, 0)
	b.releases(backend.Read, backend.Freed)

	if res := c.gets(backend.Write); res.Count != 1 {
		t.Errorf("count %d", res.Count)
	}
	if res := c.gets(backend.Write); res.Count != 2 {
		t.Errorf("a re-entry: count %d", res.Count)
	}
	a.fails(backend.Read, lease)
	a.fails(backend.Write, lease)
	c.sees(backend.Write, true, 2)
	c.sees(backend.Read, false, 0)
	for range 2 {
		if res := c.gets(backend.Read); res.Count != 1 {
			t.Errorf("count %d of a reader", res.Count)
		}
	}
	c.gets(backend.Write) // c still writes, though it reads under that
	for _, want := range []backend.ReleaseOutcome{backend.Left, backend.Left, backend.Freed,
		backend.NotHeld} {
		c.releases(backend.Write, want)
	}
	c.sees(backend.Read, true, 1)
	a.gets(backend.Read)
	b.fails(backend.Write, lease)
	c.renews(backend.Read, true)
	c.renews(backend.Write, false)
	c.releases(backend.Read, backend.Freed)
	a.releases(backend.Read, backend.Freed)
	nothingLeft(t, admin, a, b, c)
}

// TestForcedReadWrite: a forced release takes away all readers, or a writer with its reads. The
// owners can't bring them back.
func TestForcedReadWrite(t *testing.T) {
	t.Parallel()
	a, b, c, admin := parties(t)
	a.gets(backend.Read)
	b.gets(backend.Read)
	c.forces(backend.Write, false)
	c.forces(backend.Read, true)
	c.forces(backend.Read, false)
	a.renews(backend.Read, false)
	b.releases(backend.Read, backend.NotHeld)
	a.releases(backend.Read, backend.NotHeld)
	nothingLeft(t, admin, a, b, c)

	a.gets(backend.Write)
	a.gets(backend.Write)
	a.gets(backend.Read)
	c.forces(backend.Read, false)
	c.forces(backend.Write, true)
	c.forces(backend.Write, false)
	c.sees(backend.Read, false, 0)
	a.renews(backend.Read, false)
	a.renews(backend.Write, false)
	a.releases(backend.Read, backend.NotHeld)
	a.releases(backend.Write, backend.NotHeld)
	nothingLeft(t, admin, a, b, c)

	// Many are taken at once, whoever comes meanwhile.
	const n = 30
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { party{t, a.s, fmt.Sprint("reader ", i)}.gets(backend.Read) })
	}
	all.Wait()
	if res := b.try(backend.Write); res.Acquired || res.Remaining >= 0 {
		t.Errorf("beside %d readers: %+v; want no time", n, res)
	}
	if res := c.sees(backend.Read, true, 0); res.Remaining < lease/2 {
		t.Errorf("%+v", res)
	}
	c.forces(backend.Read, true)
	if keys := keysOf(t, admin); len(keys) != 0 {
		t.Errorf("the keys %q are left", keys)
	}
	for i := range n {
		party{t, a.s, fmt.Sprint("reader ", i)}.releases(backend.Read, backend.NotHeld)
	}
	nothingLeft(t, admin, a, b, c)
}

// kindSteps are all steps of a kind, by Alice on "n".
func kindSteps(kind backend.Kind) map[string]func(context.Context, session) error {
	return map[string]func(context.Context, session) error{
		"acquire": func(ctx context.Context, s session) error {
			_, err := s.Acquire(ctx, backend.AcquireRequest{
				Kind: kind, Name: "n", Owner: alice, Lease: lease, Permits: 1, Limit: 1,
			})
			return err
		},
		"acquire with a place": func(ctx context.Context, s session) error {
			_, err := s.Acquire(ctx, backend.AcquireRequest{
				Kind: kind, Name: "n", Owner: alice, Lease: lease, Waited: time.Second,
				Place: time.Minute, Permits: 1, Limit: 1,
			})
			return err
		},
		"release": func(ctx context.Context, s session) error {
			_, err := s.Release(ctx, backend.ReleaseRequest{
				Kind: kind, Name: "n", Owner: alice, Lease: lease, Permits: 1,
			})
			return err
		},
		"renew": func(ctx context.Context, s session) error {
			_, err := s.Renew(ctx, backend.RenewRequest{
				Kind: kind, Name: "n", Owner: alice, Lease: lease, Permits: 1,
			})
			return err
		},
		"force": func(ctx context.Context, s session) error {
			_, err := s.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: kind, Name: "n"})
			return err
		},
		"look": func(ctx context.Context, s session) error {
			_, err := s.Look(ctx, backend.LookRequest{
				Kind: kind, Name: "n", Owner: alice, Permits: 1, Limit: 1,
			})
			return err
		},
	}
}

// state is all keys, values and revisions.
func state(t *testing.T, admin *clientv3.Client) string {
	t.Helper()
	var all strings.Builder
	for _, kv := range wiretest.Must[*clientv3.GetResponse](t)(
		admin.Get(t.Context(), "", clientv3.WithPrefix())).Kvs {
		fmt.Fprintln(&all, kv)
	}
	return all.String()
}

// TestKindsUnderOneName: a name that is used for one kind of lock isn't one of the other, whoever
// has it, and however a step begins that has never seen it, or has seen it otherwise.
func TestKindsUnderOneName(t *testing.T) {
	t.Parallel()
	locks := []backend.Kind{backend.Exclusive, backend.Fenced, backend.Fair}
	sides := []backend.Kind{backend.Read, backend.Write}
	permits := []backend.Kind{backend.Permits}
	a, b, other, admin := parties(t)
	for _, c := range []struct{ held, wanted []backend.Kind }{
		{locks, sides}, {locks, permits}, {sides, locks}, {sides, permits}, {permits, locks},
		{permits, sides},
	} {
		for _, held := range c.held {
			for _, wanted := range c.wanted {
				for _, holder := range []party{b, {t, b.s, alice}} {
					for step, run := range kindSteps(wanted) {
						// The lock that a's session has seen last is of the wanted kind, and held
						// by another.
						other.gets(wanted)
						a.try(wanted)
						a.releases(wanted, map[bool]backend.ReleaseOutcome{true: backend.Freed,
							false: backend.NotHeld}[wanted == backend.Read])
						other.releases(wanted, backend.Freed)
						holder.gets(held)
						before := state(t, admin)
						for name, s := range map[string]session{
							"a session that has seen another": a.s,
							"a fresh session":                 open(t, admin),
						} {
							for range 2 {
								err := run(t.Context(), s)
								wantKind(t, err, backend.Refused)
								if !errors.Is(err, backend.ErrConflict) {
									t.Errorf("%s %v by %s where %v is held by %.8s: %v", step,
										wanted, name, held, holder.owner, err)
								}
							}
						}
						if after := state(t, admin); after != before {
							t.Errorf("%s %v has changed\n%sto\n%s", step, wanted, before, after)
						}
						holder.releases(held, backend.Freed)
					}
				}
				a.gets(wanted) // now that the name is free
				a.releases(wanted, backend.Freed)
			}
		}
	}
}

// TestNamesWithin: names that look like the keys of other locks.
func TestNamesWithin(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	s := open(t, admin)
	ctx := t.Context()
	acquire := func(kind backend.Kind, name, owner string) (bool, error) {
		res, err := s.Acquire(ctx, backend.AcquireRequest{
			Kind: kind, Name: name, Owner: owner, Lease: lease, Place: time.Minute, Permits: 1,
			Limit: 9,
		})
		return res.Acquired, err
	}
	for _, within := range []string{"n\x01read/", "n\x01read/" + alice,
		"n\x01read/x\x01read/" + alice, "n\x01waits/" + alice, "n\x01permits/" + alice,
		"n\x01line/" + alice, "n\x01"} {
		for _, kind := range []backend.Kind{backend.Exclusive, backend.Write, backend.Read,
			backend.Permits, backend.Fair} {
			if ok, err := acquire(kind, within, bob); !ok || err != nil {
				t.Fatalf("%q to %v: %v, %v", within, kind, ok, err)
			}
			before := state(t, admin)
			for _, wanted := range []backend.Kind{backend.Read, backend.Write, backend.Exclusive,
				backend.Permits, backend.Fair} {
				for _, owner := range []string{alice, "x\x01read/" + bob, within[1:]} {
					// It is free, but may seem not to be: then nothing happens.
					ok, err := acquire(wanted, "n", owner)
					if !ok && !errors.Is(err, backend.ErrConflict) {
						t.Errorf("%v of n, where %q is held to %v: %v, %v", wanted, within, kind,
							ok, err)
					}
					if look, err := s.Look(ctx, backend.LookRequest{
						Kind: wanted, Name: "n", Owner: owner, Limit: 9,
					}); !errors.Is(err, backend.ErrConflict) && (err != nil || look.Held != ok) {
						t.Errorf("%v of n, where %q is held to %v: %+v, %v; want held %v", wanted,
							within, kind, look, err, ok)
					}
					if res, err := s.ForceRelease(ctx,
						backend.ForceReleaseRequest{Kind: wanted, Name: "n"}); !errors.Is(err,
						backend.ErrConflict) && (err != nil || res.Released != ok) {
						t.Errorf("%v of n, where %q is held to %v: %+v, %v; want released %v",
							wanted, within, kind, res, err, ok)
					} else if err != nil {
						s.Release(ctx, backend.ReleaseRequest{
							Kind: wanted, Name: "n", Owner: owner, Lease: lease, Permits: 1,
						})
					}
				}
			}
			if after := state(t, admin); after != before {
				t.Fatalf("steps on n have changed\n%sto\n%s", before, after)
			}
			if res, err := s.Release(ctx, backend.ReleaseRequest{
				Kind: kind, Name: within, Owner: bob, Lease: lease, Permits: 1,
			}); err != nil || res.Outcome != backend.Freed {
				t.Fatalf("%q to %v: %+v, %v", within, kind, res, err)
			}
		}
	}
}

// TestReadWriteRoundTrips: a lock that nobody else has takes one round trip, as a plain one does.
func TestReadWriteRoundTrips(t *testing.T) {
	t.Parallel()
	var sent counts
	server := testservers.Etcd(t)
	s := open(t, connect(t, server.Addr, sent.install))
	other := party{t, open(t, connect(t, server.Addr)), bob}
	check := func(what string, want map[string]int) {
		t.Helper()
		if got, _ := sent.get(); got != fmt.Sprint(want) {
			t.Errorf("%s sent %v, want %v", what, got, want)
		}
		sent.reset()
	}
	p := party{t, s, alice}
	p.gets(backend.Read)
	check("the first acquisition", map[string]int{rpcTxn: 2, rpcGrant: 1})
	p.renews(backend.Read, true)
	check("a renewal", map[string]int{rpcTxn: 1})
	p.gets(backend.Read)
	check("an acquisition of what it has", map[string]int{rpcTxn: 1})
	p.releases(backend.Read, backend.Freed)
	check("a release", map[string]int{rpcTxn: 1})
	for _, kind := range []backend.Kind{backend.Read, backend.Write, backend.Fenced} {
		p.gets(kind, waits(0, time.Minute))
		check(kind.String(), map[string]int{rpcTxn: 1})
		p.releases(kind, backend.Freed)
		check("its release", map[string]int{rpcTxn: 1})
	}
	p.gets(backend.Write)
	check("a write", map[string]int{rpcTxn: 1})
	p.gets(backend.Read, func(req *backend.AcquireRequest) { req.Lease = 3 * lease })
	check("a read under it, with a new lease", map[string]int{rpcTxn: 1, rpcGrant: 1})
	p.releases(backend.Write, backend.Freed)
	check("a downgrade", map[string]int{rpcTxn: 1})
	p.releases(backend.Read, backend.Freed)
	check("its end", map[string]int{rpcTxn: 1})

	other.gets(backend.Write)
	p.fails(backend.Read, lease)
	check("a read in vain", map[string]int{rpcTxn: 1, rpcTTL: 1})
	p.fails(backend.Read, lease)
	check("another", map[string]int{rpcTxn: 1, rpcTTL: 1})
	p.fails(backend.Write, lease)
	check("a write in vain", map[string]int{rpcTxn: 1, rpcTTL: 1})
	p.fails(backend.Write, lease, waits(0, time.Minute))
	check("one that leaves a note", map[string]int{rpcTxn: 2, rpcTTL: 1, rpcGrant: 1})
	p.fails(backend.Write, lease, waits(time.Second, time.Minute))
	check("another", map[string]int{rpcTxn: 2, rpcTTL: 1})
	other.releases(backend.Write, backend.Freed)
	p.gets(backend.Write, waits(time.Second, time.Minute))
	check("one that gets in", map[string]int{rpcTxn: 2})
	p.releases(backend.Write, backend.Freed)
	check("its release", map[string]int{rpcTxn: 1})
}

// TestExpiryMovesUp: a hold of a read-write lock lasts no shorter than before, and no longer than
// it was asked to.
func TestExpiryMovesUp(t *testing.T) {
	t.Parallel()
	a, b, _, admin := parties(t)
	lasting := func(d time.Duration) func(*backend.AcquireRequest) {
		return func(req *backend.AcquireRequest) { req.Lease = d }
	}
	for _, kind := range []backend.Kind{backend.Read, backend.Write} {
		for name, p := range map[string]party{
			"its session":     a,
			"another session": {t, b.s, alice},
		} {
			want := func(what string, d time.Duration) {
				t.Helper()
				if res := p.sees(kind, true, 1); res.Remaining < d-2*time.Second ||
					res.Remaining > d+time.Second {
					t.Errorf("%v by %s: %s lasts for %v, want %v", kind, name, what, res.Remaining,
						d)
				}
			}
			release := func(p party, d time.Duration, outcome backend.ReleaseOutcome) {
				t.Helper()
				res := wiretest.Must[backend.ReleaseResult](t)(
					p.s.Release(t.Context(), backend.ReleaseRequest{
						Kind: kind, Name: "n", Owner: p.owner, Lease: d,
					}))
				if res.Outcome != outcome {
					t.Errorf("%v by %s: %v, want %v", kind, name, res.Outcome, outcome)
				}
			}
			leave := func(d time.Duration) {
				t.Helper()
				if kind == backend.Write {
					release(p, d, backend.Left)
				}
			}
			a.gets(kind, lasting(10*lease))
			p.gets(kind, lasting(lease))
			leave(lease)
			want("a second acquisition with a shorter lease", 10*lease)
			wiretest.Must[backend.RenewResult](t)(p.s.Renew(t.Context(), backend.RenewRequest{
				Kind: kind, Name: "n", Owner: alice, Lease: lease,
			}))
			want("a renewal with a shorter lease", 10*lease)
			p.gets(kind, lasting(20*lease))
			leave(lease)
			want("an acquisition with a longer lease", 20*lease)
			wiretest.Must[backend.RenewResult](t)(p.s.Renew(t.Context(), backend.RenewRequest{
				Kind: kind, Name: "n", Owner: alice, Lease: 30 * lease,
			}))
			want("a renewal with a longer lease", 30*lease)
			release(p, lease, backend.Freed)
			if p != a {
				release(a, lease, backend.NotHeld)
			}
			nothingLeft(t, admin, a, b)
		}
	}
}

// TestRenewedTogether: holds of all kinds, and some that are no more.
func TestRenewedTogether(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	s := open(t, connect(t, server.Addr))
	var reqs []backend.RenewRequest
	kinds := []backend.Kind{backend.Exclusive, backend.Fenced, backend.Read, backend.Write}
	for i := range 40 {
		req := backend.RenewRequest{
			Kind: kinds[i%4], Name: fmt.Sprint("lock ", i), Owner: alice, Lease: lease,
		}
		reqs = append(reqs, req)
		if i >= 20 {
			continue
		}
		acquired := backend.AcquireRequest{
			Kind: req.Kind, Name: req.Name, Owner: alice, Lease: lease,
		}
		if i >= 10 {
			acquired.Lease = lease / 2
		}
		wiretest.Must[backend.AcquireResult](t)(s.Acquire(t.Context(), acquired))
	}
	var mu sync.Mutex
	s.RenewBatch(t.Context(), reqs, func(i int, res backend.RenewResult, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil || res.Held != (i < 20) {
			t.Errorf("renewal %d: %+v, %v", i, res, err)
		}
	})
	for _, req := range reqs[:20] {
		look := wiretest.Must[backend.LookResult](t)(s.Look(t.Context(), backend.LookRequest{
			Kind: req.Kind, Name: req.Name, Owner: alice,
		}))
		if look.Count != 1 || look.Remaining < lease*3/4 {
			t.Errorf("%+v after a renewal", look)
		}
	}
}

// deletes says whether a request is a transaction that would delete keys.
func deletes(req any) bool {
	txn, ok := req.(*pb.TxnRequest)
	return ok && txn.Success[0].GetRequestDeleteRange() != nil
}

// TestForcedMeanwhile: a forced release notices what happens after it has read the keys and before
// it deletes them.
func TestForcedMeanwhile(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	admin := connect(t, server.Addr)
	a, b := party{t, open(t, connect(t, server.Addr)), alice}, party{
		t, open(t, connect(t, server.Addr)), bob,
	}
	var meanwhile func()
	forcer := party{t, open(t, connect(t, server.Addr, intercept(func(
		ctx context.Context, req any, send invoke,
	) error {
		if f := meanwhile; f != nil && deletes(req) {
			meanwhile = nil
			f()
		}
		return send(ctx)
	}))), carol}

	a.gets(backend.Read)
	meanwhile = func() { b.gets(backend.Read) }
	forcer.forces(backend.Read, true)
	a.releases(backend.Read, backend.NotHeld)
	b.releases(backend.Read, backend.NotHeld)

	a.gets(backend.Read)
	meanwhile = func() {
		a.releases(backend.Read, backend.Freed)
		a.gets(backend.Write)
		a.gets(backend.Read)
	}
	forcer.forces(backend.Read, false)
	meanwhile = func() {
		a.releases(backend.Write, backend.Freed)
		b.gets(backend.Read)
	}
	forcer.forces(backend.Write, false)
	a.releases(backend.Read, backend.Freed)
	b.releases(backend.Read, backend.Freed)
	nothingLeft(t, admin, a, b)

	// Another lock, whose name looks like a key of this one.
	for kind, name := range map[backend.Kind]string{
		backend.Read: "n\x01read/x", backend.Permits: "n\x01permits/x",
	} {
		a.gets(kind)
		other := backend.AcquireRequest{Name: name, Owner: bob, Lease: lease}
		meanwhile = func() {
			wiretest.Must[backend.AcquireResult](t)(b.s.Acquire(t.Context(), other))
		}
		if res, err := forcer.s.ForceRelease(t.Context(), backend.ForceReleaseRequest{
			Kind: kind, Name: "n",
		}); !errors.Is(err, backend.ErrConflict) {
			t.Errorf("%v: %+v, %v", kind, res, err)
		}
		if get(t, admin, key(name)) == nil {
			t.Errorf("%v: another lock was released", kind)
		}
		wiretest.Must[backend.ReleaseResult](t)(b.s.Release(t.Context(),
			backend.ReleaseRequest{Name: name, Owner: bob, Lease: lease}))
		a.releases(kind, backend.Freed)
	}
}

// TestAloneWithItsKey: a user that may use a lock's key alone pays for that with more requests only
// the first time.
func TestAloneWithItsKey(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t, "--bcrypt-cost", "4")
	root := connect(t, server.Addr)
	ctx := t.Context()
	for _, user := range []string{"root", "locker"} {
		wiretest.Must[*clientv3.AuthUserAddResponse](t)(root.UserAdd(ctx, user, "secret"))
		wiretest.Must[*clientv3.AuthRoleAddResponse](t)(root.RoleAdd(ctx, user))
		wiretest.Must[*clientv3.AuthUserGrantRoleResponse](t)(root.UserGrantRole(ctx, user, user))
	}
	wiretest.Must[*clientv3.AuthRoleGrantPermissionResponse](t)(
		root.RoleGrantPermission(ctx, "locker",
			key("n"), "", clientv3.PermissionType(clientv3.PermReadWrite)))
	wiretest.Must[*clientv3.AuthEnableResponse](t)(root.AuthEnable(ctx))
	var sent counts
	p := party{t, open(t, connect(t, server.Addr, as("locker", "secret"), sent.install)), alice}
	p.gets(backend.Fenced)
	p.releases(backend.Fenced, backend.Freed)
	for range 3 {
		sent.reset()
		p.gets(backend.Fenced)
		p.releases(backend.Fenced, backend.Freed)
		p.releases(backend.Fenced, backend.NotHeld)
		p.sees(backend.Fenced, false, 0)
		p.renews(backend.Fenced, false)
		if got, _ := sent.get(); got != fmt.Sprint(map[string]int{rpcTxn: 3, rpcRange: 2}) {
			t.Errorf("sent %v", got)
		}
	}
	for _, kind := range []backend.Kind{backend.Read, backend.Write} {
		_, err := p.s.Acquire(ctx, backend.AcquireRequest{
			Kind: kind, Name: "n", Owner: alice, Lease: lease,
		})
		wantKind(t, err, backend.Refused)
	}
}

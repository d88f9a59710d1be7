package etcdbackend_test

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

const keep = 2 * lease

// keepRequest is a release with Keep.
func (p party) keepRequest(kind backend.Kind) backend.ReleaseRequest {
	return backend.ReleaseRequest{
		Kind: kind, Name: "n", Owner: p.owner, Lease: lease, Permits: 1, Keep: keep,
	}
}

func (p party) keepsHeld(kind backend.Kind, want backend.ReleaseOutcome) {
	p.t.Helper()
	if res := wiretest.Must[backend.ReleaseResult](p.t)(
		p.s.Release(p.t.Context(), p.keepRequest(kind))); res.Outcome != want {
		p.t.Fatalf("%.8s releases the lock to %v with Keep: %v, want %v", p.owner, kind,
			res.Outcome, want)
	}
}

// TestKeep: a lock that is kept is one key that other versions understand, on a lease of its own.
// Nothing else is left.
func TestKeep(t *testing.T) {
	t.Parallel()
	a, b, _, admin := parties(t)
	kept := alice + "-kept"
	for kind, want := range map[backend.Kind]struct{ key, value string }{
		backend.Exclusive: {"n", fmt.Sprintf(`{"owner":%q,"count":1}`, kept)},
		backend.Fenced:    {"n", fmt.Sprintf(`{"owner":%q,"count":1}`, kept)},
		backend.Fair:      {"n", fmt.Sprintf(`{"owner":%q,"count":1}`, kept)},
		backend.Write:     {"n", fmt.Sprintf(`{"owner":%q,"count":1,"kind":"write"}`, kept)},
		backend.Permits:   {"n\x01permits/" + kept, ""},
	} {
		a.gets(kind)
		before := leases(t, admin, a.s, b.s)
		a.keepsHeld(kind, backend.Kept)
		a.keepsHeld(kind, backend.Kept)
		all := wiretest.Must[*clientv3.GetResponse](t)(
			admin.Get(t.Context(), key("n"), clientv3.WithPrefix())).Kvs
		if len(all) != 1 || string(all[0].Key) != key(want.key) ||
			want.value != "" && string(all[0].Value) != want.value {
			t.Fatalf("%v: %v; want %q at %q", kind, all, want.value, want.key)
		}
		left := wiretest.Must[*clientv3.LeaseTimeToLiveResponse](t)(
			admin.TimeToLive(t.Context(), clientv3.LeaseID(all[0].Lease)))
		if left.GrantedTTL != int64(keep/time.Second)+1 {
			t.Errorf("%v: its lease is %d s", kind, left.GrantedTTL)
		}
		if n := leases(t, admin, a.s, b.s); n != before {
			t.Errorf("%v: there are %d leases in use, where there were %d", kind, n, before)
		}
		wiretest.Must[backend.ForceReleaseResult](t)(
			b.s.ForceRelease(t.Context(), backend.ForceReleaseRequest{Kind: kind, Name: "n"}))
	}
	if n := etcdbackend.Remembered(a.s); n != 0 {
		t.Errorf("%d holds are remembered", n)
	}
}

// A lock that a session keeps for a time also ends if the session is closed, or its process dies:
// its lease runs out.
func TestWhatAClosedSessionKeeps(t *testing.T) {
	t.Parallel()
	a, b, _, _ := parties(t)
	a.gets(backend.Exclusive)
	req := a.keepRequest(backend.Exclusive)
	req.Keep = time.Second
	if res := wiretest.Must[backend.ReleaseResult](t)(
		a.s.Release(t.Context(), req)); res.Outcome != backend.Kept {
		t.Fatalf("release with Keep: %v", res.Outcome)
	}
	a.s.Close()
	testservers.Until(t, "the lock is free", func() bool {
		return !wiretest.Must[backend.LookResult](t)(
			b.s.Look(t.Context(), backend.LookRequest{Name: "n"})).Held
	})
}

// A release with Keep that is carried out late doesn't touch what is there by then; and one that
// wasn't answered, but was carried out, is found by the next.
func TestLateKeep(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	proxy := wiretest.NewProxy(t, server.Addr, faults.HTTP2)
	a := party{t, open(t, connect(t, proxy.Addr())), alice}
	again := party{t, open(t, connect(t, server.Addr)), alice}
	for _, blow := range []faults.Blow{faults.HoldRequest, faults.LoseReply, faults.LoseRequest} {
		for n := range 3 {
			// the requests that it takes: a lease, the release, and what is left of the hold's
			a.gets(backend.Exclusive)
			end := proxy.Strike(blow, n)
			done := make(chan error, 1)
			go func() {
				_, err := a.s.Release(t.Context(), a.keepRequest(backend.Exclusive))
				done <- err
			}()
			var err error
			if blow == faults.HoldRequest {
				testservers.Until(t, "it is kept by another request", func() bool {
					res, err := again.s.Release(t.Context(), again.keepRequest(backend.Exclusive))
					return err == nil && res.Outcome == backend.Kept
				})
				again.s.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "n"})
				end()
				err = <-done
			} else {
				err = <-done
				end()
				testservers.Until(t, "it is kept", func() bool {
					res, err := again.s.Release(t.Context(), again.keepRequest(backend.Exclusive))
					return err == nil && res.Outcome == backend.Kept
				})
				again.s.ForceRelease(t.Context(), backend.ForceReleaseRequest{Name: "n"})
			}
			if look := wiretest.Must[backend.LookResult](t)(
				again.s.Look(t.Context(), backend.LookRequest{Name: "n"})); look.Held {
				t.Fatalf("%v of request %d: the release said %v, and in the end there is %+v", blow,
					n, err, look)
			}
		}
	}
}

package wiretest

import (
	"fmt"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Prefix tests clients with a prefix. For them, "n" must name the lock that other clients call
// prefix + "n", and no other key may be touched.
func Prefix(t *testing.T, p Package, server *testservers.Server) {
	ctx := t.Context()
	client := connect(t, server.Addr)
	s, plain := open(t, p.Server(t, server.Addr, Options{Prefix: "lock:"})),
		open(t, p.Server(t, server.Addr, Options{}))
	client.HSet(ctx, "n", "name", "bob") // other data under the unprefixed name

	Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
	if res := Must[backend.AcquireResult](t)(s.Acquire(ctx, Reenter(Alice))); res.Count != 2 {
		t.Errorf("re-entered: %d holds", res.Count)
	}
	WantHash(t, client, "lock:n", map[string]string{Alice: "2"}, Lease)
	if res := Must[backend.LookResult](t)(
		s.Look(ctx, backend.LookRequest{Name: "n", Owner: Alice})); !res.Held || res.Count != 2 {
		t.Errorf("looked at: %+v", res)
	}
	other := backend.AcquireRequest{Name: "lock:n", Owner: Bob, Lease: Lease}
	if res := Must[backend.AcquireResult](t)(plain.Acquire(ctx, other)); res.Acquired {
		t.Error("two hold it")
	}

	reqs := []backend.RenewRequest{
		Renew(Alice), Renew(Bob), {Name: "another", Owner: Alice, Lease: Lease},
	}
	for n := 1; n <= len(reqs); n++ {
		s.RenewBatch(ctx, reqs[:n], func(i int, res backend.RenewResult, err error) {
			if err != nil || res.Held != (i == 0) {
				t.Errorf("renewed in a batch of %d: request %d: %v, %v", n, i, res.Held, err)
			}
		})
	}
	if reqs[0] != Renew(Alice) {
		t.Errorf("the caller's request is %+v now", reqs[0])
	}
	if !Must[backend.RenewResult](t)(s.Renew(ctx, Renew(Alice))).Held {
		t.Error("renewed: lost")
	}

	own, others := Subscribe(t, s, "n"), Subscribe(t, plain, "lock:n")
	req := Release(Alice)
	req.AskWaiting = true
	for _, want := range []backend.ReleaseResult{{Outcome: backend.Left},
		{Outcome: backend.Freed, Counted: true, Waiting: 1}, {}} {
		if res := Must[backend.ReleaseResult](t)(s.Release(ctx, req)); res != want {
			t.Errorf("release: %+v, want %+v", res, want)
		}
	}
	for range 2 { // one wake-up for the release, and one for the forced release
		if !own.Wait() || !others.Wait() {
			t.Error("a release wakes all")
		}
		Must[backend.AcquireResult](t)(plain.Acquire(ctx, other))
		Must[backend.ForceReleaseResult](t)(
			s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"}))
	}
	own.Wait()
	others.Wait()
	if got := client.Keys(ctx, "*").Val(); fmt.Sprint(got) != "[n]" {
		t.Errorf("keys %q are left", got)
	}
	WantHash(t, client, "n", map[string]string{"name": "bob"}, -1)
}

package wiretest

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/seed951563bd/distsync/backend"
)

// A Maker creates backends of the package under test, on one server or on miniredis. Their clients
// are closed when the test ends.
type Maker func(t testing.TB, addr string) backend.Backend

// EachStep checks what each step of a plain lock does and answers. The function on makes a backend.
func EachStep(t *testing.T, addr string, on Maker) {
	ctx := t.Context()
	s := open(t, on(t, addr))
	look := func(owner string, held bool, count int) {
		t.Helper()
		got := Must[backend.LookResult](t)(
			s.Look(ctx, backend.LookRequest{Name: "n", Owner: owner}))
		if got.Held != held || got.Count != count || held != (got.Remaining > 0) ||
			got.Remaining > Lease {
			t.Errorf("look: %+v, want held %v, count %d", got, held, count)
		}
	}
	look(Alice, false, 0)
	look("", false, 0)
	for count := 1; count <= 2; count++ {
		res := Must[backend.AcquireResult](t)(s.Acquire(ctx, Reenter(Alice)))
		if !res.Acquired || res.Count != count {
			t.Errorf("acquire: %+v, want the count %d", res, count)
		}
	}
	look(Alice, true, 2)
	look(Bob, true, 0)
	look("", true, 0)
	if res := Must[backend.AcquireResult](t)(
		s.Acquire(ctx, Reenter(Bob))); res.Acquired || res.Remaining <= 0 {
		t.Errorf("acquire by another: %+v", res)
	}
	if !Must[backend.RenewResult](t)(s.Renew(ctx, Renew(Alice))).Held {
		t.Error("renew: lost")
	}
	if Must[backend.RenewResult](t)(s.Renew(ctx, Renew(Bob))).Held {
		t.Error("renew by another: held")
	}
	for _, want := range []backend.ReleaseOutcome{backend.Left, backend.Freed,
		backend.NotHeld} {
		if res := Must[backend.ReleaseResult](t)(
			s.Release(ctx, Release(Alice))); res.Outcome != want {
			t.Errorf("release: %v, want %v", res.Outcome, want)
		}
	}
	Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
	for _, want := range []bool{true, false} {
		res := Must[backend.ForceReleaseResult](t)(
			s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"}))
		if res.Released != want {
			t.Errorf("force-release: %v, want %v", res.Released, want)
		}
	}

	connect(t, addr).HSet(ctx, "n", Alice, 1) // without an expiry
	if res := Must[backend.AcquireResult](t)(
		s.Acquire(ctx, Acquire(Bob))); res.Acquired || res.Remaining >= 0 {
		t.Errorf("acquire of what never ends: %+v", res)
	}
	if res := Must[backend.LookResult](t)(
		s.Look(ctx, backend.LookRequest{Name: "n"})); !res.Held || res.Remaining >= 0 {
		t.Errorf("look at what never ends: %+v", res)
	}
}

// ReleaseAfterClose checks that a lock can be released after its session was closed. The client
// stays open.
func ReleaseAfterClose(t *testing.T, addr string, on Maker) {
	s := on(t, addr).Open()
	Must[backend.AcquireResult](t)(s.Acquire(t.Context(), Acquire(Alice)))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if res := Must[backend.ReleaseResult](t)(
		s.Release(t.Context(), Release(Alice))); res.Outcome != backend.Freed {
		t.Errorf("release: %v", res.Outcome)
	}
}

// Conflict checks that every step refuses a value under the lock's name that isn't a lock, and
// leaves it alone.
func Conflict(t *testing.T, addr string, on Maker) {
	ctx := t.Context()
	client := connect(t, addr)
	s := open(t, on(t, addr))
	client.Set(ctx, "n", "precious", 0)
	for _, step := range Steps {
		err := step.Run(ctx, s)
		if !errors.Is(err, backend.ErrConflict) {
			t.Errorf("%s: %v, want ErrConflict", step.Name, err)
		}
		WantKind(t, err, backend.Refused)
	}
	if got := client.Get(ctx, "n").Val(); got != "precious" {
		t.Errorf("the key holds %q now", got)
	}
	if ttl := client.PTTL(ctx, "n").Val(); ttl != -1 {
		t.Errorf("the key expires in %v", ttl)
	}
}

// ScriptsForgotten checks that steps work although the server has forgotten its scripts, as it does
// when it restarts.
func ScriptsForgotten(t *testing.T, addr string, on Maker) {
	ctx := t.Context()
	client := connect(t, addr)
	s := open(t, on(t, addr))
	for _, step := range Steps {
		client.ScriptFlush(ctx)
		if err := step.Run(ctx, s); err != nil {
			t.Errorf("%s: %v", step.Name, err)
		}
	}

	client.FlushAll(ctx)
	client.ScriptFlush(ctx)
	if res := Must[backend.AcquireResult](t)(
		s.Acquire(ctx, Reenter(Alice))); res.Count != 1 {
		t.Errorf("acquired %d times at once", res.Count)
	}

	client.ScriptFlush(ctx)
	reqs := make([]backend.RenewRequest, 2500) // more than one pipeline
	for i := range reqs {
		reqs[i] = Renew(Alice)
		if i%2 == 1 {
			reqs[i].Owner = Bob
		}
	}
	var mu sync.Mutex
	answers := make([]int, len(reqs))
	s.RenewBatch(ctx, reqs, func(i int, res backend.RenewResult, err error) {
		mu.Lock()
		defer mu.Unlock()
		answers[i]++
		if err != nil || res.Held != (i%2 == 0) {
			t.Errorf("renewal %d: %+v, %v", i, res, err)
		}
	})
	if slices.Min(answers) != 1 || slices.Max(answers) != 1 {
		t.Error("not every renewal was answered once")
	}
}

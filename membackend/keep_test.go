package membackend_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

const keep = time.Minute

// keeper is an owner of a lock of some kind, "lock", with one permit where it has permits, of one.
type keeper struct {
	t     *testing.T
	s     session
	kind  backend.Kind
	owner string
}

func (k keeper) permits() int {
	if k.kind == backend.Permits {
		return 1
	}
	return 0
}

func (k keeper) acquire(limit int) backend.AcquireResult {
	k.t.Helper()
	res, err := k.s.Acquire(k.t.Context(),
		backend.AcquireRequest{Kind: k.kind, Name: "lock", Owner: k.owner, Lease: lease,
			Place:   lease,
			Permits: k.permits(), Limit: limit})
	if err != nil {
		k.t.Fatalf("%s acquires: %v", k.owner, err)
	}
	return res
}

func (k keeper) gets() {
	k.t.Helper()
	if res := k.acquire(k.permits()); !res.Acquired {
		k.t.Fatalf("%s acquires: %+v; want acquired", k.owner, res)
	}
}

func (k keeper) refused(limit int, remaining time.Duration) {
	k.t.Helper()
	if res := k.acquire(limit); res != (backend.AcquireResult{Remaining: remaining}) {
		k.t.Fatalf("%s acquires: %+v; want refused for %v", k.owner, res, remaining)
	}
}

func (k keeper) releases(keep time.Duration, want backend.ReleaseOutcome) {
	k.t.Helper()
	res, err := k.s.Release(k.t.Context(), backend.ReleaseRequest{
		Kind: k.kind, Name: "lock", Owner: k.owner, Lease: lease, Permits: k.permits(), Keep: keep,
	})
	if err != nil || res.Outcome != want {
		k.t.Fatalf("%s releases, keep %v: %v, %v; want %v", k.owner, keep, res.Outcome, err, want)
	}
}

func (k keeper) renews(want bool) {
	k.t.Helper()
	res, err := k.s.Renew(k.t.Context(), backend.RenewRequest{
		Kind: k.kind, Name: "lock", Owner: k.owner, Lease: time.Hour, Permits: k.permits(),
	})
	if err != nil || res.Held != want {
		k.t.Fatalf("%s renews: %v, %v; want %v", k.owner, res.Held, err, want)
	}
}

func (k keeper) sees(want backend.LookResult) {
	k.t.Helper()
	want.Kept = want.Kept && k.kind != backend.Permits
	if k.kind == backend.Permits && !want.Held {
		want.Available = 1
	}
	res, err := k.s.Look(k.t.Context(), backend.LookRequest{
		Kind: k.kind, Name: "lock", Owner: k.owner, Permits: k.permits(), Limit: k.permits(),
	})
	if err != nil || res != want {
		k.t.Fatalf("%s looks: %+v, %v; want %+v", k.owner, res, err, want)
	}
}

// eachKeeper runs a test of two owners for each kind of lock that can be kept, and hands it a
// function that says how many wake-ups there were.
func eachKeeper(t *testing.T, test func(t *testing.T, a, b keeper, woken func() int)) {
	for _, kind := range []backend.Kind{backend.Exclusive, backend.Fenced, backend.Fair,
		backend.Write, backend.Permits} {
		t.Run(kind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				a, b := keeper{t, open(store), kind, "a"}, keeper{t, open(store), kind, "b"}
				wakes := 0
				_, err := b.s.Subscribe(t.Context(), backend.SubscribeRequest{
					Kind: kind, Name: "lock", Wake: func(backend.Wakeup) { wakes++ },
				})
				if err != nil {
					t.Fatal(err)
				}
				test(t, a, b, func() int { return wakes })
				time.Sleep(time.Millisecond)
				synctest.Wait() // for the sweep
				if objects, _, _ := store.Size(); objects != 0 {
					t.Errorf("%d objects are left", objects)
				}
			})
		})
	}
}

// A lock that a release keeps has no holder, for exactly that time. Late requests of its former
// holder change nothing about that.
func TestReleaseKeeps(t *testing.T) {
	eachKeeper(t, func(t *testing.T, a, b keeper, woken func() int) {
		if !membackend.New().Limits().Keeps {
			t.Error("Limits don't say that what is released can be kept")
		}
		a.releases(keep, backend.NotHeld)
		a.gets()
		b.releases(keep, backend.NotHeld)
		a.sees(backend.LookResult{Held: true, Count: 1, Remaining: lease})
		a.releases(keep, backend.Kept)
		a.sees(backend.LookResult{Held: true, Remaining: keep, Kept: true})
		time.Sleep(keep / 2)
		a.refused(a.permits(), keep/2)
		a.refused(5*a.permits(), keep/2) // where there is room for others, too
		a.renews(false)
		a.releases(0, backend.NotHeld)
		a.releases(keep, backend.Kept)
		b.releases(keep, backend.NotHeld)
		a.sees(backend.LookResult{Held: true, Remaining: keep / 2, Kept: true})
		time.Sleep(keep/2 - time.Millisecond)
		synctest.Wait()
		a.sees(backend.LookResult{Held: true, Remaining: time.Millisecond, Kept: true})
		time.Sleep(time.Millisecond)
		a.releases(keep, backend.NotHeld)
		a.sees(backend.LookResult{})
		if n := woken(); n != 0 {
			t.Errorf("%d wake-ups; want none", n)
		}
		b.gets()
		b.releases(0, backend.Freed)
	})
}

// It is less than the lease that the hold had, where that is asked for.
func TestReleaseKeepsForLessThanTheLease(t *testing.T) {
	eachKeeper(t, func(t *testing.T, a, b keeper, _ func() int) {
		a.gets()
		a.releases(time.Second, backend.Kept)
		if b.kind != backend.Fair { // whose place would be left
			b.refused(b.permits(), time.Second)
		}
		time.Sleep(time.Second)
		b.gets()
		b.releases(0, backend.Freed)
	})
}

// Only the last of an owner's holds is kept.
func TestReleaseOfOneOfSeveralKeepsNothing(t *testing.T) {
	eachKeeper(t, func(t *testing.T, a, b keeper, _ func() int) {
		if a.kind == backend.Permits { // one hold, of several permits
			return
		}
		a.gets()
		if res, err := a.s.Acquire(t.Context(), backend.AcquireRequest{
			Kind: a.kind, Name: "lock", Owner: "a", Lease: lease, Reentry: true,
		}); err != nil || res.Count != 2 {
			t.Fatalf("re-entry: %+v, %v", res, err)
		}
		a.releases(keep, backend.Left)
		a.sees(backend.LookResult{Held: true, Count: 1, Remaining: lease})
		a.renews(true)
		a.releases(keep, backend.Kept)
		a.sees(backend.LookResult{Held: true, Remaining: keep, Kept: true})
		time.Sleep(keep)
	})
}

// A forced release frees what is kept, and wakes.
func TestForceReleaseOfWhatIsKept(t *testing.T) {
	eachKeeper(t, func(t *testing.T, a, b keeper, woken func() int) {
		a.gets()
		a.releases(keep, backend.Kept)
		res, err := b.s.ForceRelease(t.Context(),
			backend.ForceReleaseRequest{Kind: b.kind, Name: "lock"})
		if err != nil || !res.Released || woken() != 1 {
			t.Errorf("forced: %+v, %v, %d wake-ups; want released, and one", res, err, woken())
		}
		b.gets()
		b.releases(0, backend.Freed)
	})
}

// An inspector sees the former holder, and that the lock is kept.
func TestInspectWhatIsKept(t *testing.T) {
	eachKeeper(t, func(t *testing.T, a, b keeper, _ func() int) {
		sees := func(kept bool, remaining time.Duration) {
			t.Helper()
			i, err := b.s.Inspect(t.Context(), backend.InspectRequest{Name: "lock"})
			if err != nil || len(i.Holders) != 1 || i.Holders[0].Owner != "a" ||
				i.Holders[0].Count != 1 ||
				i.Holders[0].Kept != kept || i.Holders[0].Remaining != remaining {
				t.Errorf("%+v, %v; want one holder, kept %v, for %v", i, err, kept, remaining)
			}
		}
		a.gets()
		sees(false, lease)
		a.releases(keep, backend.Kept)
		sees(true, keep)
		time.Sleep(keep)
	})
}

// Nobody in line is given a kept lock before it is over. Late requests of its former holder don't
// put that into the line.
func TestLineBehindWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		a, b := keeper{t, open(store), backend.Fair, "a"}, keeper{t, open(store), backend.Fair, "b"}
		var granted atomic.Int32
		_, err := b.s.Subscribe(t.Context(),
			backend.SubscribeRequest{Kind: backend.Fair, Name: "lock",
				Wake:    func(backend.Wakeup) {},
				Granted: func(backend.Grant) { granted.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		const keep = lease / 2 // so that b's place is there then
		a.gets()
		b.refused(0, lease)
		a.releases(keep, backend.Kept)
		a.refused(0, keep)
		if n := store.Holds("lock"); n != 2 {
			t.Errorf("%d holds and places; want what is kept, and b's place", n)
		}
		time.Sleep(keep - time.Millisecond)
		synctest.Wait()
		if granted.Load() != 0 {
			t.Error("b was given what is kept")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if granted.Load() != 1 {
			t.Errorf("b was given the lock %d times after what was kept was over; want 1",
				granted.Load())
		}
		b.releases(0, backend.Freed)
	})
}

// A note of a writer stays as it is, and readers stay out until what the other has written is no
// longer kept.
func TestReadersStayOutOfWhatIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := sides(t, membackend.New())
		a := keeper{t, write[0].s, backend.Write, "a"}
		a.gets()
		read[0].acquires(true) // its owner goes on reading
		a.releases(keep, backend.Kept)
		read[1].refused(backend.AcquireRequest{}, keep)
		read[1].forces(false)
		read[0].releases(backend.Freed)
		read[0].refused(backend.AcquireRequest{}, keep)
		time.Sleep(keep)
		read[1].acquires(true)
	})
}

// Kept permits stay out, whatever number of permits another owner asks for.
func TestKeptPermitsAreOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c, woken := workers(t)
		a.gets(2, 4)
		res, err := a.s.Release(t.Context(), backend.ReleaseRequest{
			Kind: backend.Permits, Name: "sem", Owner: "a", Lease: lease, Permits: 2, Keep: lease,
		})
		if err != nil || res.Outcome != backend.Kept {
			t.Fatalf("release: %+v, %v; want kept", res, err)
		}
		b.waits(3, 4, lease)
		c.gets(2, 4)
		a.renews(1, false) // of another number: what is kept stays
		a.releases(1, backend.NotHeld)
		a.waits(1, 4, lease)
		a.sees(4, backend.LookResult{Held: true, Remaining: lease})
		c.releases(2, backend.Freed)
		if n := woken(); n != 1 {
			t.Errorf("%d wake-ups; want that of c's release", n)
		}
		time.Sleep(lease)
		b.gets(4, 4)
	})
}

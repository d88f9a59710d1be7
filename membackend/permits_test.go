package membackend_test

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// worker is an owner of permits of the semaphore "sem".
type worker struct {
	t     *testing.T
	s     session
	owner string
}

// workers returns owners a, b and c, each on a session of its own, and a function that says how
// often they were woken since it was last called.
func workers(t *testing.T) (a, b, c worker, woken func() int) {
	store := membackend.New()
	wakes := 0
	var all [3]worker
	for i, owner := range []string{"a", "b", "c"} {
		all[i] = worker{t, open(store), owner}
	}
	_, err := all[0].s.Subscribe(t.Context(), backend.SubscribeRequest{
		Kind: backend.Permits, Name: "sem", Wake: func(backend.Wakeup) { wakes++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	return all[0], all[1], all[2], func() int { defer func() { wakes = 0 }(); return wakes }
}

func (w worker) acquire(n, limit int) (backend.AcquireResult, error) {
	return w.s.Acquire(w.t.Context(), backend.AcquireRequest{
		Kind: backend.Permits, Name: "sem", Owner: w.owner, Lease: lease, Permits: n, Limit: limit,
	})
}

func (w worker) gets(n, limit int) {
	w.t.Helper()
	if res, err := w.acquire(n, limit); err != nil ||
		res != (backend.AcquireResult{Acquired: true, Count: n}) {
		w.t.Fatalf("%s acquires %d of %d: %+v, %v; want acquired, count %[2]d", w.owner, n, limit,
			res, err)
	}
}

func (w worker) waits(n, limit int, remaining time.Duration) {
	w.t.Helper()
	if res, err := w.acquire(n, limit); err != nil ||
		res != (backend.AcquireResult{Remaining: remaining}) {
		w.t.Fatalf("%s acquires %d of %d: %+v, %v; want not acquired, remaining %v", w.owner, n,
			limit, res, err, remaining)
	}
}

func (w worker) refused(n, limit int, want error) {
	w.t.Helper()
	if _, err := w.acquire(n, limit); !errors.Is(err, want) ||
		backend.KindOf(err) != backend.Refused {
		w.t.Fatalf("%s acquires %d of %d: %v; want %v, refused", w.owner, n, limit, err, want)
	}
}

func (w worker) releases(n int, want backend.ReleaseOutcome) {
	w.t.Helper()
	res, err := w.s.Release(w.t.Context(), backend.ReleaseRequest{
		Kind: backend.Permits, Name: "sem", Owner: w.owner, Lease: lease, Permits: n,
	})
	if err != nil || res.Outcome != want {
		w.t.Fatalf("%s releases %d: %v, %v; want %v", w.owner, n, res.Outcome, err, want)
	}
}

func (w worker) renews(n int, want bool) {
	w.t.Helper()
	res, err := w.s.Renew(w.t.Context(), backend.RenewRequest{
		Kind: backend.Permits, Name: "sem", Owner: w.owner, Lease: lease, Permits: n,
	})
	if err != nil || res.Held != want {
		w.t.Fatalf("%s renews %d: %v, %v; want %v", w.owner, n, res.Held, err, want)
	}
}

func (w worker) sees(limit int, want backend.LookResult) {
	w.t.Helper()
	res, err := w.s.Look(w.t.Context(), backend.LookRequest{
		Kind: backend.Permits, Name: "sem", Owner: w.owner, Limit: limit,
	})
	if err != nil || res != want {
		w.t.Fatalf("%s looks, with the limit %d: %+v, %v; want %+v", w.owner, limit, res, err, want)
	}
}

// Never more than there are, all or none, and each owner's come back by themselves.
func TestPermitsEndOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c, woken := workers(t)
		a.sees(5, backend.LookResult{Available: 5})
		a.gets(2, 5)
		time.Sleep(10 * time.Second)
		a.gets(2, 5) // again: it has them for longer, and no more of them
		time.Sleep(10 * time.Second)
		b.gets(2, 5)
		c.waits(2, 5, lease-10*time.Second)
		c.gets(1, 5)
		a.sees(5, backend.LookResult{Held: true, Count: 2, Remaining: lease})
		b.renews(2, true)
		c.renews(1, true)
		time.Sleep(20 * time.Second)
		a.renews(2, false)
		a.releases(2, backend.NotHeld)
		a.sees(5, backend.LookResult{Held: true, Remaining: 10 * time.Second, Available: 2})
		if n := woken(); n != 0 {
			t.Errorf("%d wake-ups while nobody gave anything back", n)
		}
		b.releases(2, backend.Freed)
		if n := woken(); n != 1 {
			t.Errorf("%d wake-ups after a release; want 1", n)
		}
		a.gets(4, 5)
		b.waits(1, 5, 10*time.Second)
		time.Sleep(lease)
		a.sees(5, backend.LookResult{Available: 5})
	})
}

// A limit applies to the call that names it. A call without a limit gets the last one that was
// named, while any permit is out.
func TestLimitOfPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c, woken := workers(t)
		a.refused(1, 0, backend.ErrNoLimit)
		a.refused(3, 2, backend.ErrTooMany)
		a.refused(1, 0, backend.ErrNoLimit) // a refused request tells no limit
		if _, err := a.s.Look(t.Context(), backend.LookRequest{
			Kind: backend.Permits, Name: "sem",
		}); !errors.Is(err, backend.ErrNoLimit) {
			t.Errorf("Look without a limit: %v; want ErrNoLimit", err)
		}
		a.gets(2, 2)
		b.waits(1, 0, lease)
		b.refused(3, 0, backend.ErrTooMany)
		if n := woken(); n != 0 {
			t.Errorf("%d wake-ups while nothing has changed", n)
		}
		b.waits(3, 4, lease) // not enough, and so nothing changes
		c.sees(0, backend.LookResult{Held: true, Remaining: lease})
		if n := woken(); n != 0 {
			t.Errorf("%d wake-ups when somebody was refused", n)
		}
		b.gets(1, 4) // others may get in now, too
		if n := woken(); n != 1 {
			t.Errorf("%d wake-ups when there are more permits; want 1", n)
		}
		c.sees(0, backend.LookResult{Held: true, Remaining: lease, Available: 1})
		c.sees(1, backend.LookResult{Held: true, Remaining: lease})
		b.releases(1, backend.Freed)
		woken()
		c.gets(2, 0)
		c.waits(3, 4, lease) // of another number, so what it had is given back
		if n := woken(); n != 1 {
			t.Errorf("%d wake-ups when an owner came for another number; want 1", n)
		}
		b.waits(1, 1, lease) // fewer than are out
		if n := woken(); n != 0 {
			t.Errorf("%d wake-ups when there are fewer permits", n)
		}
		time.Sleep(lease)
		a.refused(1, 0, backend.ErrNoLimit)
	})
}

// An owner that comes back with another number than it has has lost part of its permits. The step
// gives the rest back, whatever it is.
func TestPartOfAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _, woken := workers(t)
		for _, step := range []func(){
			func() { a.renews(2, false) },
			func() { a.releases(4, backend.NotHeld) },
			func() { a.gets(1, 3); a.releases(1, backend.Freed) },
		} {
			a.gets(3, 3)
			b.waits(1, 3, lease)
			step()
			a.sees(3, backend.LookResult{Available: 3})
		}
		a.gets(3, 3)
		a.renews(1, false)
		if n := woken(); n != 5 {
			t.Errorf("%d wake-ups; want 5, for four holds that were given back and one that was "+
				"released", n)
		}
		a.gets(2, 3)
		b.gets(1, 3)
		for _, want := range []bool{true, false} {
			res, err := b.s.ForceRelease(t.Context(), backend.ForceReleaseRequest{
				Kind: backend.Permits, Name: "sem",
			})
			if err != nil || res.Released != want {
				t.Errorf("ForceRelease: %v, %v; want %v", res.Released, err, want)
			}
		}
		if n := woken(); n != 1 {
			t.Errorf("%d wake-ups after two forced releases, of which one found permits; want 1", n)
		}
		a.sees(3, backend.LookResult{Available: 3})
	})
}

// A release says who waits, as that of other kinds.
func TestWhoWaitsForPermits(t *testing.T) {
	a, b, _, _ := workers(t)
	for w, want := range map[worker]int{a: 0, b: 1} {
		w.gets(1, 2)
		res, err := w.s.Release(t.Context(), backend.ReleaseRequest{
			Kind: backend.Permits, Name: "sem", Owner: w.owner, Lease: lease, Permits: 1,
			AskWaiting: true,
		})
		if err != nil ||
			res != (backend.ReleaseResult{Outcome: backend.Freed, Counted: true, Waiting: want}) {
			t.Errorf("%s releases: %+v, %v; want %d others waiting", w.owner, res, err, want)
		}
	}
}

// Nothing may be left of workers that died, also where somebody has looked before the table was
// swept.
func TestNothingIsLeftOfPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		s := open(b)
		acquire(t, s, "long", time.Hour)
		// so that the table is swept then, and not again as soon as the permits are over
		acquire(t, s, "short", time.Millisecond)
		for i := range 1000 {
			_, err := s.Acquire(t.Context(), backend.AcquireRequest{
				Kind: backend.Permits, Name: "sem", Owner: strconv.Itoa(i),
				Lease: time.Millisecond + time.Duration(1+i), Permits: 1, Limit: 1000,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Millisecond + time.Microsecond)
		if n := b.Holds("sem"); n != 1000 {
			t.Errorf("%d holds before the table is swept; want 1000", n)
		}
		if _, err := s.Look(t.Context(), backend.LookRequest{
			Kind: backend.Permits, Name: "sem", Limit: 1,
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if objects, _, _ := b.Size(); objects != 1 {
			t.Errorf("%d objects; want one", objects)
		}
	})
}

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

// side is one kind of the lock "lock" as an owner sees it.
type side struct {
	t     *testing.T
	s     session
	kind  backend.Kind
	owner string
}

func (p side) acquire(req backend.AcquireRequest) backend.AcquireResult {
	p.t.Helper()
	req.Kind, req.Name, req.Owner, req.Lease = p.kind, "lock", p.owner, lease
	res, err := p.s.Acquire(p.t.Context(), req)
	if err != nil {
		p.t.Fatalf("Acquire(%v) by %s: %v", p.kind, p.owner, err)
	}
	return res
}

// acquires acquires, or is refused for as long as another's hold or note lasts.
func (p side) acquires(want bool) {
	p.t.Helper()
	if res := p.acquire(backend.AcquireRequest{}); res.Acquired != want {
		p.t.Fatalf("Acquire(%v) by %s: %+v; want acquired %v", p.kind, p.owner, res, want)
	}
}

// refused is refused for as long as something lasts.
func (p side) refused(req backend.AcquireRequest, remaining time.Duration) {
	p.t.Helper()
	if res := p.acquire(req); res != (backend.AcquireResult{Remaining: remaining}) {
		p.t.Fatalf("Acquire(%v) by %s, %+v: %+v; want refused, remaining %v", p.kind, p.owner, req,
			res, remaining)
	}
}

func (p side) releases(want backend.ReleaseOutcome) backend.ReleaseResult {
	p.t.Helper()
	res, err := p.s.Release(p.t.Context(), backend.ReleaseRequest{
		Kind: p.kind, Name: "lock", Owner: p.owner, Lease: lease, AskWaiting: true,
	})
	if err != nil || res.Outcome != want {
		p.t.Fatalf("Release(%v) by %s: %v, %v; want %v", p.kind, p.owner, res.Outcome, err, want)
	}
	return res
}

func (p side) forces(want bool) {
	p.t.Helper()
	res, err := p.s.ForceRelease(p.t.Context(),
		backend.ForceReleaseRequest{Kind: p.kind, Name: "lock"})
	if err != nil || res.Released != want {
		p.t.Fatalf("ForceRelease(%v): %v, %v; want %v", p.kind, res.Released, err, want)
	}
}

func (p side) sees(want backend.LookResult) {
	p.t.Helper()
	res, err := p.s.Look(p.t.Context(), backend.LookRequest{
		Kind: p.kind, Name: "lock", Owner: p.owner,
	})
	if err != nil || res != want {
		p.t.Fatalf("Look(%v) by %s: %+v, %v; want %+v", p.kind, p.owner, res, err, want)
	}
}

// sides returns owners a, b and c, each on a session of its own, as readers and as writers.
func sides(t *testing.T, b *membackend.Backend) (read, write [3]side) {
	for i, owner := range []string{"a", "b", "c"} {
		s := open(b)
		read[i] = side{t, s, backend.Read, owner}
		write[i] = side{t, s, backend.Write, owner}
	}
	return read, write
}

// Each reader's hold ends by itself, and a writer waits for the last.
func TestReadersEndOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		read, write := sides(t, b)
		read[0].acquires(true)
		time.Sleep(10 * time.Second)
		read[1].acquires(true)
		write[2].refused(backend.AcquireRequest{}, lease)
		read[1].sees(backend.LookResult{Held: true, Count: 1, Remaining: lease})
		write[0].sees(backend.LookResult{})
		time.Sleep(20 * time.Second)
		read[0].sees(backend.LookResult{Held: true, Remaining: 10 * time.Second})
		read[0].releases(backend.NotHeld)
		write[2].refused(backend.AcquireRequest{}, 10*time.Second)
		read[1].releases(backend.Freed)
		write[2].acquires(true)
		read[0].refused(backend.AcquireRequest{Waited: time.Hour}, lease)
	})
}

// A Write ends no earlier for a request with a shorter lease, nor does a Read.
func TestReadWriteOnlyLengthens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := sides(t, membackend.New())
		for _, p := range []side{write[0], read[0]} { // the read under the write
			p.acquires(true)
			for _, again := range []func(lease time.Duration){
				func(lease time.Duration) {
					p.s.Acquire(t.Context(), backend.AcquireRequest{
						Kind: p.kind, Name: "lock", Owner: "a", Lease: lease,
					})
				},
				func(lease time.Duration) {
					p.s.Renew(t.Context(), backend.RenewRequest{
						Kind: p.kind, Name: "lock", Owner: "a", Lease: lease,
					})
				},
			} {
				again(2 * lease)
				again(lease)
				time.Sleep(lease)
			}
			p.sees(backend.LookResult{
				Held: true, Count: map[backend.Kind]int{backend.Write: 3, backend.Read: 1}[p.kind],
				Remaining: lease,
			})
			if p.kind == backend.Write {
				time.Sleep(lease / 2)
				p.releases(backend.Left)
				p.sees(backend.LookResult{Held: true, Count: 2, Remaining: lease})
			}
		}
	})
}

// Readers that came after a waiting writer wait for it, but not longer than it asks.
func TestNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := sides(t, membackend.New())
		place := backend.AcquireRequest{Place: 3 * time.Second}
		read[0].acquires(true)
		time.Sleep(time.Second)
		write[1].refused(place, lease-time.Second)
		time.Sleep(time.Second)
		read[2].refused(backend.AcquireRequest{}, 2*time.Second)
		read[2].refused(backend.AcquireRequest{Waited: time.Second - 1}, 2*time.Second)
		read[0].acquires(true) // reads already
		read[0].releases(backend.Freed)
		read[2].refused(backend.AcquireRequest{}, 2*time.Second) // though nobody holds anything
		read[2].acquire(backend.AcquireRequest{Waited: time.Second})
		read[2].sees(backend.LookResult{Held: true, Count: 1, Remaining: lease})

		// A note that is renewed keeps its time. A writer that says it came earlier is believed.
		place.Waited = time.Second
		write[1].refused(place, lease)
		read[0].refused(backend.AcquireRequest{Waited: time.Second - 1}, 3*time.Second)
		place.Waited = 5 * time.Second
		write[1].refused(place, lease)
		read[0].refused(backend.AcquireRequest{Waited: 5*time.Second - 1}, 3*time.Second)
		place.Waited = 0
		write[1].refused(place, lease)
		read[0].refused(backend.AcquireRequest{Waited: 5*time.Second - 1}, 3*time.Second)
		read[0].acquire(backend.AcquireRequest{Waited: 5 * time.Second})
		read[0].releases(backend.Freed)

		// The last microsecond of a note is a millisecond.
		time.Sleep(3*time.Second - time.Microsecond)
		read[0].refused(backend.AcquireRequest{}, time.Millisecond)
		time.Sleep(time.Microsecond)
		read[0].acquires(true)
		read[0].releases(backend.Freed)

		// It ends when the writer gets in, and when it gives up.
		place.Waited = time.Minute
		write[0].refused(place, lease-3*time.Second)
		write[1].refused(place, lease-3*time.Second)
		read[2].releases(backend.Freed)
		write[1].acquires(true)
		write[1].forces(true)
		read[2].refused(backend.AcquireRequest{}, 3*time.Second) // that of the other
		write[0].releases(backend.NotHeld)
		read[2].acquires(true) // none of who was forced
	})
}

// A writer may read, and goes on reading.
func TestDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := sides(t, membackend.New())
		read[0].acquires(true)
		write[0].acquires(false) // nobody gets from reading to writing
		read[0].releases(backend.Freed)
		write[0].acquires(true)
		write[1].refused(backend.AcquireRequest{Place: time.Second}, lease)
		read[0].acquires(true) // the writer reads, though another waits
		read[1].acquires(false)
		read[0].forces(false)
		write[0].releases(backend.Freed)
		write[0].sees(backend.LookResult{})
		write[2].acquires(false)
		write[0].forces(false)
		time.Sleep(time.Second)
		read[1].acquires(true)
		read[0].forces(true)
		write[2].acquires(true)
		read[2].acquires(true)
		write[0].forces(true)
		read[2].sees(backend.LookResult{})
	})
}

// The end of a write wakes every session, and so does the last reader that leaves.
func TestWhoIsWoken(t *testing.T) {
	b := membackend.New()
	read, write := sides(t, b)
	woken := 0
	for _, s := range []session{read[0].s, read[1].s} {
		if _, err := s.Subscribe(t.Context(), backend.SubscribeRequest{
			Kind: backend.Read, Name: "lock", Wake: func(backend.Wakeup) { woken++ },
		}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(after string, want int) {
		t.Helper()
		if woken != want {
			t.Errorf("after %s: woken %d times; want %d", after, woken, want)
		}
		woken = 0
	}
	read[0].acquires(true)
	read[1].acquires(true)
	if res := read[0].releases(backend.Freed); res.Counted {
		t.Errorf("Release while others read: %+v; want nothing counted", res)
	}
	read[0].releases(backend.NotHeld)
	expect("a reader that left another", 0)
	if res := read[1].releases(backend.Freed); !res.Counted || res.Waiting != 1 {
		t.Errorf("Release by the last reader: %+v; want one other waiting", res)
	}
	expect("the last reader", 2)

	write[0].acquires(true)
	write[0].acquires(true)
	write[0].releases(backend.Left)
	expect("one of two writes", 0)
	read[0].acquires(true)
	read[0].releases(backend.Freed)
	expect("a read under a write", 0)
	read[0].acquires(true)
	write[0].releases(backend.Freed)
	expect("a downgrade", 2)
	write[1].acquire(backend.AcquireRequest{Place: time.Minute})
	write[1].releases(backend.NotHeld)
	expect("a note that was given up", 2)
	write[1].releases(backend.NotHeld)
	expect("no note", 0)
	read[0].forces(true)
	expect("a forced read", 2)
	write[0].acquires(true)
	write[1].forces(true)
	expect("a forced write", 2)
	write[1].forces(false)
	expect("a forced release of nothing", 0)
}

// A token is never given twice, whatever becomes of the locks.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(membackend.New())
		a, b := side{t, s, backend.Fenced, "a"}, side{t, s, backend.Fenced, "b"}
		plain := side{t, s, backend.Exclusive, "c"}
		last := uint64(0)
		for _, free := range []func(){
			func() { a.releases(backend.Left); a.releases(backend.Freed) },
			func() { a.forces(true) },
			func() { plain.forces(true) },
			func() { time.Sleep(lease) },
			func() {
				a.releases(backend.Left)
				a.releases(backend.Freed)
				plain.acquires(true)
				plain.releases(backend.Freed)
			},
		} {
			first, again := a.acquire(backend.AcquireRequest{}),
				a.acquire(backend.AcquireRequest{Reentry: true})
			if first.Token <= last || again.Token != first.Token {
				t.Errorf("tokens %d, and %d for a re-entry, after %d; want one that is larger",
					first.Token, again.Token, last)
			}
			last = first.Token
			for _, other := range []side{b, plain} {
				if res := other.acquire(backend.AcquireRequest{}); res.Acquired || res.Token != 0 {
					t.Errorf("Acquire(%v) by another: %+v; want refused", other.kind, res)
				}
			}
			free()
		}
		if res := plain.acquire(backend.AcquireRequest{}); res.Token != 0 {
			t.Errorf("a plain lock has the token %d", res.Token)
		}
	})
}

// A name belongs to one of three locks, until all of its holds are over.
func TestKindsOfOneName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(membackend.New())
		locks := map[backend.Kind]string{
			backend.Exclusive: "one owner's", backend.Fenced: "one owner's",
			backend.Fair: "one owner's",
			backend.Read: "read-write", backend.Write: "read-write",
			backend.Permits: "semaphore",
		}
		for held, is := range locks {
			holder := side{t, s, held, "a"}
			holder.acquire(backend.AcquireRequest{Permits: 1, Limit: 1})
			for k, other := range locks {
				if is == other {
					continue
				}
				errs := make(map[string]error)
				_, errs["Acquire"] = s.Acquire(t.Context(), backend.AcquireRequest{
					Kind: k, Name: "lock", Owner: "a", Lease: lease, Permits: 1, Limit: 1,
				})
				_, errs["Release"] = s.Release(t.Context(), backend.ReleaseRequest{
					Kind: k, Name: "lock", Owner: "a", Lease: lease, Permits: 1,
				})
				_, errs["Renew"] = s.Renew(t.Context(), backend.RenewRequest{
					Kind: k, Name: "lock", Owner: "a", Lease: lease, Permits: 1,
				})
				_, errs["ForceRelease"] = s.ForceRelease(t.Context(),
					backend.ForceReleaseRequest{Kind: k, Name: "lock"})
				_, errs["Look"] = s.Look(t.Context(), backend.LookRequest{
					Kind: k, Name: "lock", Limit: 1,
				})
				if k == backend.Fair {
					_, errs["KeepPlaces"] = s.KeepPlaces(t.Context(), backend.PlacesRequest{
						Kind: k, Name: "lock", Owners: []string{"b"}, Place: lease,
					})
				}
				for step, err := range errs {
					if !errors.Is(err, backend.ErrConflict) ||
						backend.KindOf(err) != backend.Refused {
						t.Errorf("%s(%v) of what is held as %v: %v; want ErrConflict, refused",
							step, k, held, err)
					}
				}
			}
			holder.sees(backend.LookResult{Held: true, Count: 1, Remaining: lease})
			time.Sleep(lease) // then it is free for all
		}
	})
}

// Nothing may be left of readers and of notes whose owners never come back.
func TestNothingIsLeftOfReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := membackend.New()
		s := open(b)
		acquire := func(kind backend.Kind, owner string, lease, place time.Duration) {
			t.Helper()
			_, err := s.Acquire(t.Context(), backend.AcquireRequest{
				Kind: kind, Name: "lock", Owner: owner, Lease: lease, Place: place,
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		acquire(backend.Read, "long", time.Hour, 0)
		for i := range 1000 {
			acquire(backend.Read, strconv.Itoa(i), time.Duration(1+i)*time.Millisecond, 0)
		}
		settle := func() {
			t.Helper()
			if n := b.Holds("lock"); n != 1001 {
				t.Errorf("%d holds and notes; want 1001", n)
			}
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
			if n := b.Holds("lock"); n != 1 {
				t.Errorf("after a second: %d holds and notes; want one", n)
			}
		}
		settle()
		for i := range 1000 {
			acquire(backend.Write, strconv.Itoa(i), time.Hour, time.Duration(1+i)*time.Millisecond)
		}
		settle()
		acquire(backend.Write, "dead", time.Hour, 2*time.Hour) // its note outlives all holds
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if objects, _, timer := b.Size(); objects != 0 || timer {
			t.Errorf("in the end: %d objects, timer %v; want nothing", objects, timer)
		}
	})
}

// The suite leaves out undeclared kinds, without a word.
func TestAllKindsAreDeclared(t *testing.T) {
	for k := backend.Exclusive; k <= backend.Permits; k++ {
		if !membackend.New().Limits().Kinds.Has(k) {
			t.Errorf("%v isn't declared", k)
		}
	}
}

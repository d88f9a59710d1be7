package membackend_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

func inspect(t *testing.T, s session, name string) backend.Inspection {
	t.Helper()
	i, err := s.Inspect(t.Context(), backend.InspectRequest{Name: name})
	if err != nil {
		t.Fatalf("Inspect(%s): %v", name, err)
	}
	return i
}

// list returns all locks of a prefix, from pages of this size.
func list(t *testing.T, s session, prefix string, limit int) (locks []backend.Inspection) {
	t.Helper()
	for req := (backend.ListRequest{Prefix: prefix, Limit: limit}); ; {
		res, err := s.List(t.Context(), req)
		if err != nil {
			t.Fatalf("List(%+v): %v", req, err)
		}
		if len(res.Locks) > limit || res.Next != "" && res.Next != res.Locks[limit-1].Name {
			t.Fatalf("List(%+v): %+v; want no more than the limit, and the last name as Next", req,
				res)
		}
		locks = append(locks, res.Locks...)
		if req.After = res.Next; req.After == "" {
			return locks
		}
	}
}

func names(locks []backend.Inspection) (names []string) {
	for _, i := range locks {
		names = append(names, i.Name)
	}
	return names
}

// Everything that a name can hold is reported, and nothing that is over.
func TestInspect(t *testing.T) {
	type reqs = []backend.AcquireRequest
	type holders = []backend.Holder
	const s = time.Second
	for _, c := range []struct {
		what       string
		reqs       reqs
		now, later backend.Inspection // 10 s later
	}{
		{what: "nothing"},
		{"plain", reqs{{Owner: "a", Lease: 9 * s}, {Owner: "a", Lease: 10 * s}},
			backend.Inspection{Holders: holders{{Owner: "a", Count: 2, Remaining: 10 * s}}},
			backend.Inspection{}},
		{"fenced", reqs{{Kind: backend.Fenced, Owner: "a", Lease: 20 * s}},
			backend.Inspection{Holders: holders{{Owner: "a", Count: 1, Remaining: 20 * s}}},
			backend.Inspection{Holders: holders{{Owner: "a", Count: 1, Remaining: 10 * s}}}},
		{"fair", reqs{{Kind: backend.Fair, Owner: "a", Lease: 10 * s},
			{Kind: backend.Fair, Owner: "c", Lease: s, Place: 20 * s},
			{Kind: backend.Fair, Owner: "b", Lease: s, Place: 10 * s},
			{Kind: backend.Fair, Owner: "a", Lease: s, Place: 20 * s}},
			backend.Inspection{
				Holders: holders{{Owner: "a", Count: 1, Remaining: 10 * s}},
				Line:    []string{"c", "b"},
			},
			// given by the sweep
			backend.Inspection{Holders: holders{{Owner: "c", Count: 1, Remaining: s}}}},
		{"readers", reqs{{Kind: backend.Read, Owner: "b", Lease: 10 * s},
			{Kind: backend.Read, Owner: "a", Lease: 30 * s}},
			backend.Inspection{Kind: backend.Write, Holders: holders{
				{Owner: "a", Kind: backend.Read, Count: 1, Remaining: 30 * s},
				{Owner: "b", Kind: backend.Read, Count: 1, Remaining: 10 * s}}},
			backend.Inspection{
				Kind: backend.Write, Holders: holders{{
					Owner: "a", Kind: backend.Read, Count: 1, Remaining: 20 * s,
				}},
			}},
		{"a writer that reads, and one that waits",
			reqs{{Kind: backend.Write, Owner: "b", Lease: 10 * s},
				{Kind: backend.Read, Owner: "b", Lease: 20 * s},
				{Kind: backend.Write, Owner: "a", Lease: s, Place: 20 * s}},
			backend.Inspection{Kind: backend.Write, Holders: holders{
				{Owner: "b", Kind: backend.Write, Count: 1, Remaining: 10 * s},
				{Owner: "b", Kind: backend.Read, Count: 1, Remaining: 20 * s}}},
			backend.Inspection{
				Kind: backend.Write, Holders: holders{{
					Owner: "b", Kind: backend.Read, Count: 1, Remaining: 10 * s,
				}},
			}},
		{"permits", reqs{{Kind: backend.Permits, Owner: "b", Lease: 10 * s, Permits: 2, Limit: 5},
			{Kind: backend.Permits, Owner: "a", Lease: 20 * s, Permits: 1, Limit: 4}},
			backend.Inspection{Kind: backend.Permits, Limit: 4, Holders: holders{
				{Owner: "a", Kind: backend.Permits, Count: 1, Remaining: 20 * s},
				{Owner: "b", Kind: backend.Permits, Count: 2, Remaining: 10 * s}}},
			backend.Inspection{
				Kind: backend.Permits, Limit: 4, Holders: holders{{
					Owner: "a", Kind: backend.Permits, Count: 1, Remaining: 10 * s,
				}},
			}},
		{"permits that are over",
			reqs{{Kind: backend.Permits, Owner: "b", Lease: 10 * s, Permits: 2, Limit: 5}},
			backend.Inspection{
				Kind: backend.Permits, Limit: 5, Holders: holders{{
					Owner: "b", Kind: backend.Permits, Count: 2, Remaining: 10 * s,
				}},
			},
			backend.Inspection{}},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(membackend.New())
				for _, req := range c.reqs {
					req.Name = "lock"
					if _, err := s.Acquire(t.Context(), req); err != nil {
						t.Fatal(err)
					}
				}
				for _, want := range []backend.Inspection{c.now, c.later} {
					var listed []backend.Inspection
					if want.Name = "lock"; !want.Free() {
						listed = append(listed, want)
					}
					if got := inspect(t, s, "lock"); !reflect.DeepEqual(got, want) {
						t.Errorf("Inspect: %+v; want %+v", got, want)
					}
					if got := list(t, s, "", 1); !reflect.DeepEqual(got, listed) {
						t.Errorf("List: %+v; want %+v", got, listed)
					}
					time.Sleep(10 * time.Second)
					synctest.Wait()
				}
			})
		})
	}
}

// Of very many holders, or places in line, the first thousand will do.
func TestInspectMany(t *testing.T) {
	const n = backend.MostHolders + 7
	s := open(membackend.New())
	reqs := []backend.AcquireRequest{{Kind: backend.Fair, Name: "fair", Owner: "nobody"}}
	for i := range n {
		owner := strconv.Itoa(i)
		reqs = append(reqs,
			backend.AcquireRequest{Kind: backend.Read, Name: "readers", Owner: owner},
			backend.AcquireRequest{
				Kind: backend.Permits, Name: "permits", Owner: owner, Permits: 1, Limit: n,
			},
			backend.AcquireRequest{Kind: backend.Fair, Name: "fair", Owner: owner, Place: lease})
	}
	for _, req := range reqs {
		req.Lease = lease
		if _, err := s.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"readers", "permits"} {
		if i := inspect(t, s, name); len(i.Holders) != backend.MostHolders || i.More != 7 {
			t.Errorf("Inspect(%s): %d holders, %d more; want %d and 7", name, len(i.Holders),
				i.More, backend.MostHolders)
		}
	}
	if i := inspect(t, s, "fair"); len(i.Holders) != 1 || len(i.Line) != backend.MostHolders ||
		i.Line[999] != "999" {
		t.Errorf("Inspect: %d holders, %d in line; want 1, and the first %d", len(i.Holders),
			len(i.Line), backend.MostHolders)
	}

}

// Pages of any size list what is there, by name.
func TestListPages(t *testing.T) {
	s := open(membackend.New())
	for i := range 100 {
		acquire(t, s, fmt.Sprintf("a/%02d", i), lease)
		acquire(t, s, fmt.Sprintf("b/%02d", i), lease)
		acquire(t, s, fmt.Sprintf("c/%02d", i), lease)
	}
	for _, limit := range []int{1, 7, 100, 299, 300, 301} {
		locks := list(t, s, "", limit)
		if len(locks) != 300 || !slices.IsSorted(names(locks)) {
			t.Errorf("pages of %d: %d locks, sorted %v; want 300, sorted", limit, len(locks),
				slices.IsSorted(names(locks)))
		}
		for _, prefix := range []string{"a/", "b/0", "c/00", "c/000", "x"} {
			var want []string
			for _, name := range names(locks) {
				if strings.HasPrefix(name, prefix) {
					want = append(want, name)
				}
			}
			if got := names(list(t, s, prefix, limit)); !slices.Equal(got, want) {
				t.Errorf("%q in pages of %d: %v; want %v", prefix, limit, got, want)
			}
		}
	}
}

// Locks that were freed since the first page aren't listed any more, and those that stay are, also
// when another list came between.
func TestListPagesApart(t *testing.T) {
	for _, between := range []string{"", "stays", "goes"} {
		s := open(membackend.New())
		for _, name := range []string{"goes/1", "goes/2", "goes/3", "stays/1", "stays/2",
			"stays/3"} {
			acquire(t, s, name, lease)
		}
		page := func(prefix, after string, limit int, next string, want ...string) {
			t.Helper()
			res, err := s.List(t.Context(), backend.ListRequest{
				Prefix: prefix, After: after, Limit: limit,
			})
			if got := names(res.Locks); err != nil || !slices.Equal(got, want) || res.Next != next {
				t.Errorf("with a list of %q between: List(%q) after %q: %v, next %q, %v; want "+
					"%v, next %q", between, prefix, after, got, res.Next, err, want, next)
			}
		}
		page("", "", 2, "goes/2", "goes/1", "goes/2")
		release(t, s, "goes/3", backend.Freed)
		if between != "" {
			page(between, "", 1, between+"/1", between+"/1")
		}
		page("", "goes/2", 2, "stays/2", "stays/1", "stays/2")
		acquire(t, s, "comes", lease)
		page("", "", 1, "comes", "comes")
		page("", "stays/2", 1, "", "stays/3")
	}
}

// A lock that is over isn't there, though the sweep hasn't come to it.
func TestInspectBeforeSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(membackend.New())
		acquire(t, s, "first", time.Second)
		acquire(t, s, "next", time.Second+time.Microsecond) // the sweep comes 5 us after the last
		time.Sleep(time.Second)
		synctest.Wait()
		time.Sleep(2 * time.Microsecond)
		if i := inspect(t, s, "next"); !i.Free() {
			t.Errorf("Inspect of what is over: %+v", i)
		}
		if locks := list(t, s, "", 10); len(locks) > 0 {
			t.Errorf("List of what is over: %+v", locks)
		}
	})
}

// Nothing is kept of a list that is at its end, or was given up when its session closed.
func TestListIsForgotten(t *testing.T) {
	s := open(membackend.New())
	for i := range 10 {
		acquire(t, s, strconv.Itoa(i), lease)
	}
	list(t, s, "", 3)
	if n := membackend.Listed(s); n != 0 {
		t.Errorf("%d names kept after the last page", n)
	}
	if _, err := s.List(t.Context(), backend.ListRequest{Limit: 1}); err != nil ||
		membackend.Listed(s) != 10 {
		t.Errorf("after the first page %d names are kept, %v; want 10", membackend.Listed(s), err)
	}
	s.Close()
	if n := membackend.Listed(s); n != 0 {
		t.Errorf("%d names kept after Close", n)
	}
}

// orderly notes in which order steps looked at their contexts, which they do when they have the
// store to themselves.
type orderly struct {
	context.Context
	who string
	log *[]string
}

func (c orderly) Err() error {
	*c.log = append(*c.log, c.who)
	return c.Context.Err()
}

// A list of very many locks lets others have their turn in between.
func TestListBlocksNobody(t *testing.T) {
	const n = 200_000
	b := membackend.New()
	lister, other := open(b), open(b)
	for i := range n {
		acquire(t, lister, strconv.Itoa(i), time.Hour)
	}
	for try := 0; ; try++ {
		var log []string
		var wg sync.WaitGroup
		over := make(chan struct{})
		wg.Go(func() {
			defer close(over)
			if _, err := lister.List(orderly{t.Context(), "list", &log},
				backend.ListRequest{Prefix: "none", Limit: 1}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			for {
				other.Look(orderly{t.Context(), "look", &log}, backend.LookRequest{Name: "1"})
				select {
				case <-over:
					return
				default:
				}
			}
		})
		wg.Wait()
		// The last look of a list at its context is after it has looked at the locks.
		first, lists := slices.Index(log, "list"), 0
		var last int
		for i, who := range log {
			if who == "list" {
				if lists++; lists <= n/1000 {
					last = i
				}
			}
		}
		if slices.Contains(log[first:last], "look") {
			return
		}
		if try == 100 {
			t.Fatal("nobody else had a turn while all locks were looked at")
		}
	}
}

// A lock that is held all the time is listed while others come and go, and several lists are under
// way at once.
func TestListWhileLocksChange(t *testing.T) {
	b := membackend.New()
	s := open(b)
	for i := range 2000 {
		acquire(t, s, fmt.Sprintf("stays%04d", i), time.Hour)
	}
	over := make(chan struct{})
	var changing, listing sync.WaitGroup
	for i := range 4 {
		changing.Go(func() {
			for j := 0; ; j++ {
				select {
				case <-over:
					return
				default:
				}
				name, owner := fmt.Sprintf("goes%d", j%3000), strconv.Itoa(i)
				s.Acquire(t.Context(), backend.AcquireRequest{
					Kind: backend.Read, Name: name, Owner: owner, Lease: time.Hour,
				})
				s.Release(t.Context(), backend.ReleaseRequest{
					Kind: backend.Read, Name: fmt.Sprintf("goes%d", (j+1500)%3000), Owner: owner,
					Lease: time.Hour,
				})
			}
		})
	}
	for i := range 4 {
		listing.Go(func() {
			prefix := []string{"", "s"}[i%2]
			var got []string
			for req := (backend.ListRequest{Prefix: prefix, Limit: 300 + i}); ; {
				res, err := s.List(t.Context(), req)
				if err != nil {
					t.Error(err)
					return
				}
				got = append(got, names(res.Locks)...)
				if req.After = res.Next; req.After == "" {
					break
				}
			}
			stay := slices.DeleteFunc(got, func(name string) bool {
				return !strings.HasPrefix(name, "stays")
			})
			if len(stay) != 2000 || len(slices.Compact(stay)) != 2000 {
				t.Errorf("List(%q) has %d of the 2000 locks that stay", prefix, len(stay))
			}
		})
	}
	listing.Wait()
	close(over)
	changing.Wait()
}

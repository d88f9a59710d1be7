package dlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

func TestHoldsAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet(), WithClientID("me"), WithLease(9*time.Second))
		defer c.Close()
		begin := time.Now()
		ctx := WithOwner(t.Context(), NewOwner())
		x := c.FencedLocker("x")
		must(t, x.LockContext(ctx, FixedLease(time.Second)))
		time.Sleep(time.Millisecond)
		must(t, x.LockContext(ctx)) // renewed from now on
		rw := c.RWLocker("y")
		rw.RLock()
		time.Sleep(time.Millisecond)
		rw.RLock()
		s, err := c.Semaphore("z", 3).Acquire(t.Context(), 2)
		must(t, err)
		waiter := wait(t.Context(), c.Locker("x"))
		patient, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		second := wait(patient, c.Locker("x"))
		synctest.Wait()

		var got []string
		for _, h := range c.Holds() {
			got = append(got, fmt.Sprint(h.Name, " ", h.Kind, " ", h.Since.Sub(begin), " ",
				h.Until.Sub(begin), " ", h.Renewed, " ", h.Lease, " ", h.Count, " ", h.Permits, " ",
				h.Token > 0))
			if client, _ := partsOf(h.HolderID); client != "me" {
				t.Errorf("HolderID = %q", h.HolderID)
			}
		}
		want := "[x fenced 0s 8.911s true 9s 2 0 true y read 1ms 8.911s true 9s 2 0 false z " +
			"permits 2ms 8.912s true 9s 1 2 false]"
		if fmt.Sprint(got) != want {
			t.Errorf("Holds\n%v, want\n%v", got, want)
		}
		got = nil
		for _, w := range c.Waits() {
			until := time.Duration(0)
			if !w.Until.IsZero() {
				until = w.Until.Sub(begin)
			}
			got = append(got, fmt.Sprint(w.Name, " ", w.Kind, " ", w.By, " ", w.Since.Sub(begin),
				" ", until, " ", w.Place))
		}
		if want := "[x exclusive locker 2ms 0s 1 x exclusive locker 2ms 1m0.002s 2]"; fmt.Sprint(
			got) != want {
			t.Errorf("Waits\n%v, want\n%v", got, want)
		}
		must(t, x.UnlockContext(ctx))
		must(t, x.UnlockContext(ctx))
		waiter.mustBeIn(t)
		waiter.l.Unlock()
		second.mustBeIn(t)
		second.l.Unlock()
		rw.RUnlock()
		rw.RUnlock()
		must(t, s.Release(t.Context()))
		if h, w := c.Holds(), c.Waits(); len(h)+len(w) > 0 {
			t.Errorf("left: %v, %v", h, w)
		}
		empty(t, c)
	})
}

func TestHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		store := membackend.New()
		c, other := New(store, quiet(), WithClientID("a:b")), New(store, quiet())
		defer c.Close()
		defer other.Close()
		if h, err := other.Locker("x").Holder(ctx); h != (Holder{}) || err != nil {
			t.Errorf("Holder of a free lock = %v, %v", h, err)
		}
		c.Locker("x").Lock()
		h, err := other.FairLocker("x").Holder(ctx)
		must(t, err)
		if want := (Holder{
			ID: h.ID, Client: "a:b", Kind: backend.Exclusive, Count: 1, Remaining: DefaultLease,
		}); h != want || h.ID == "" {
			t.Errorf("Holder = %+v, want %+v", h, want)
		}
		if _, err := other.Semaphore("x", 1).Holders(ctx); !errors.Is(err, ErrConflict) {
			t.Errorf("Holders of another kind: %v", err)
		}
		c.RWLocker("y").RLock()
		other.RWLocker("y").RLock()
		readers, err := c.RWLocker("y").Reader().Holders(ctx)
		if len(readers) != 2 || err != nil {
			t.Errorf("Holders = %v, %v", readers, err)
		}
		if writers, err := c.RWLocker("y").Writer().Holders(ctx); len(writers) > 0 || err != nil {
			t.Errorf("Holders of the writing side = %v, %v", writers, err)
		}
	})
}

// A store that can't say says so.
func TestAStoreThatCannotSay(t *testing.T) {
	c := New(newScript(membackend.New()).but(onlySteps), quiet())
	defer c.Close()
	_, err := c.Locker("x").Holder(t.Context())
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Holder: %v", err)
	}
	for _, err := range c.Locks(t.Context(), "") {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Locks: %v", err)
		}
	}
}

func TestForceReleaseOfPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		s := c.Semaphore("x", 2)
		if ok, err := s.ForceRelease(t.Context()); ok || err != nil {
			t.Errorf("ForceRelease of none = %v, %v", ok, err)
		}
		h, err := s.Acquire(t.Context(), 2)
		must(t, err)
		if ok, err := s.ForceRelease(t.Context()); !ok || err != nil {
			t.Errorf("ForceRelease = %v, %v", ok, err)
		}
		if l, ok := errors.AsType[*Loss](h.Err()); !ok || l.Reason != LossForced {
			t.Errorf("Err = %v", h.Err())
		}
		if n, err := s.Available(t.Context()); n != 2 || err != nil {
			t.Errorf("Available = %d, %v", n, err)
		}
	})
}

func TestPartsOf(t *testing.T) {
	for owner, want := range map[string][2]string{
		"a:1": {"a"}, "a:b:12": {"a:b"}, "a": {}, "a:": {"a"}, "0123abcd": {}, "a:x": {},
		"a note=b:1": {"a", "b"}, "a note=b note=c:1": {"a note=b", "c"},
		"a note=b c:1": {"a note=b c"},
	} {
		if client, note := partsOf(owner); client != want[0] || note != want[1] {
			t.Errorf("partsOf(%q) = %q, %q, want %q", owner, client, note, want)
		}
	}
}

// A key that no client of this package or of Redisson holds isn't listed: it may be somebody's
// data.
func TestLocksAreThoseOfClients(t *testing.T) {
	store := membackend.New()
	s := store.Open()
	defer s.Close()
	_, err := s.Acquire(t.Context(), backend.AcquireRequest{
		Name: "hits", Owner: "front page", Lease: time.Minute,
	})
	must(t, err)
	c := New(store, quiet())
	defer c.Close()
	must(t, c.Locker("lock").LockContext(t.Context()))
	_, err = c.Semaphore("permits", 1).Acquire(t.Context(), 1)
	must(t, err)
	var names []string
	for l, err := range c.Locks(t.Context(), "") {
		must(t, err)
		names = append(names, l.Name)
	}
	slices.Sort(names)
	if fmt.Sprint(names) != "[lock permits]" {
		t.Errorf("Locks lists %q", names)
	}
}

// A wait as long as can be never ends.
func TestWaitsForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		c := New(mem, quiet())
		defer c.Close()
		l := c.Locker("a")
		l.Lock()
		time.Sleep(time.Second)
		done := make(chan error)
		go func() { done <- c.Locker("a").LockContext(t.Context(), Wait(math.MaxInt64)) }()
		time.Sleep(time.Second)
		for _, w := range c.Waits() {
			if !w.Until.IsZero() && w.Until.Before(time.Now()) {
				t.Errorf("a call that waits for 292 years gives up at %v", w.Until)
			}
		}
		l.Unlock()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A lock may be handed on hours after the store has granted it.
func TestSinceOfAnOldClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet(), WithHandover(24*time.Hour))
		defer c.Close()
		l := c.Locker("a")
		l.Lock()
		time.Sleep(3 * time.Hour)
		done := make(chan *Hold)
		go func() {
			h, err := c.Locker("a").Acquire(t.Context())
			if err != nil {
				t.Error(err)
			}
			done <- h
		}()
		time.Sleep(time.Second)
		began := time.Now()
		l.Unlock()
		h := <-done
		for _, i := range c.Holds() {
			if !i.Since.Equal(began) {
				t.Errorf("it was handed on %v before the Since of Holds says", began.Sub(i.Since))
			}
		}
		h.Release(t.Context())
	})
}

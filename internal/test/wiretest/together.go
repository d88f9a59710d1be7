package wiretest

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Writes counts what is written to connections.
type Writes struct{ n atomic.Int64 }

// Count returns how often something was written since the last call.
func (w *Writes) Count() int { return int(w.n.Swap(0)) }

// Conn returns a connection that counts.
func (w *Writes) Conn(c net.Conn) net.Conn { return countedConn{c, w} }

type countedConn struct {
	net.Conn
	w *Writes
}

func (c countedConn) Write(b []byte) (int, error) {
	c.w.n.Add(1)
	return c.Conn.Write(b)
}

// Together checks that several locks of one server are acquired with one write, and released with another, by the scripts of single locks, with
// their keys and arguments.
func Together(t *testing.T, server *testservers.Server, b backend.Backend, writes *Writes) {
	ctx := t.Context()
	s := open(t, b)
	client := connect(t, server.Addr)
	names := []string{"{x}a", "{x}b", "{x}c"}
	acquire := func(owner string) (results [3]backend.AcquireResult, errs [3]error) {
		var reqs []backend.AcquireRequest
		for _, name := range names {
			reqs = append(reqs, backend.AcquireRequest{Name: name, Owner: owner, Lease: Lease})
		}
		var mu sync.Mutex
		s.(backend.Batcher).AcquireBatch(ctx, reqs, func(i int, res backend.AcquireResult, err error) {
			mu.Lock()
			defer mu.Unlock()
			results[i], errs[i] = res, err
		})
		return results, errs
	}
	release := func(owner string) (results [3]backend.ReleaseResult, errs [3]error) {
		var reqs []backend.ReleaseRequest
		for _, name := range names {
			reqs = append(reqs, backend.ReleaseRequest{Name: name, Owner: owner, Lease: Lease})
		}
		var mu sync.Mutex
		s.(backend.Batcher).ReleaseBatch(ctx, reqs, func(i int, res backend.ReleaseResult, err error) {
			mu.Lock()
			defer mu.Unlock()
			results[i], errs[i] = res, err
		})
		return results, errs
	}
	m := Watch(t, server.Addr)
	if got, errs := acquire(Alice); !got[0].Acquired || !got[1].Acquired || !got[2].Acquired {
		t.Fatalf("the server doesn't know the script: %+v, %v", got, errs)
	}
	for _, name := range names {
		WantHash(t, client, name, map[string]string{Alice: "1"}, Lease)
	}
	if got, errs := release(Alice); got[0].Outcome != backend.Freed || got[1].Outcome != backend.Freed || got[2].Outcome != backend.Freed {
		t.Fatalf("the server doesn't know the script: %+v, %v", got, errs)
	}

	// A client may flush what is there, now and then, before all is.
	inOneWrite := func(what string, do, undo func()) {
		for attempt := 1; ; attempt++ {
			m.Commands()
			writes.Count()
			do()
			n := writes.Count()
			if n == 1 {
				return
			}
			if attempt == 20 {
				t.Fatalf("%d writes to %s", n, what)
			}
			undo()
		}
	}
	inOneWrite("acquire", func() { acquire(Alice) }, func() { release(Alice) })
	wantCommands(t, m,
		`"EVALSHA" "SHA" "1" "{x}a" "30000" `+Quoted(Alice),
		`"EVALSHA" "SHA" "1" "{x}b" "30000" `+Quoted(Alice),
		`"EVALSHA" "SHA" "1" "{x}c" "30000" `+Quoted(Alice))
	inOneWrite("release", func() { release(Alice) }, func() { acquire(Alice) })
	wantCommands(t, m,
		`"EVALSHA" "SHA" "2" "{x}a" `+Quoted("redisson_lock__channel:{x}a", 0, 30000, Alice),
		`"EVALSHA" "SHA" "2" "{x}b" `+Quoted("redisson_lock__channel:{x}b", 0, 30000, Alice),
		`"EVALSHA" "SHA" "2" "{x}c" `+Quoted("redisson_lock__channel:{x}c", 0, 30000, Alice))

	// One is another's, and one no lock: that says nothing of the third.
	Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{Name: names[0], Owner: Bob, Lease: Lease}))
	client.HSet(ctx, names[1], "name", "bob")
	got, errs := acquire(Alice)
	if got[0].Acquired || got[0].Remaining <= 0 || errs[0] != nil || !errors.Is(errs[1], backend.ErrConflict) || !got[2].Acquired || errs[2] != nil {
		t.Errorf("another's, no lock, and free: %+v, %v", got, errs)
	}
	freed, errs := release(Alice)
	if freed[0].Outcome != backend.NotHeld || errs[0] != nil || !errors.Is(errs[1], backend.ErrConflict) || freed[2].Outcome != backend.Freed {
		t.Errorf("another's, no lock, and held: %+v, %v", freed, errs)
	}
	client.Del(ctx, names[1])
	release(Bob)

	// By way of a client: two round trips.
	c := locks(t, b)
	all := dlock.All(c.Locker(names[2]), c.Locker(names[0]), c.Locker(names[1]))
	pair := func() {
		if ok, err := all.TryLock(ctx); !ok || err != nil {
			t.Errorf("TryLock = %v, %v", ok, err)
		}
		if err := all.UnlockContext(ctx); err != nil {
			t.Error(err)
		}
	}
	for attempt := 0; ; attempt++ {
		m.Commands()
		writes.Count()
		pair()
		n, sent := writes.Count(), len(m.Commands())
		if attempt > 0 && n == 2 && sent == 6 {
			break
		}
		if attempt == 20 {
			t.Fatalf("a pair takes %d writes and %d commands", n, sent)
		}
	}
}

// TogetherInACluster checks that locks in several slots are acquired and released together, whatever has which.
func TogetherInACluster(t *testing.T, b backend.Backend) {
	ctx := t.Context()
	c := locks(t, b)
	var lockers []*dlock.Locker
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		lockers = append(lockers, c.Locker("all:"+name), c.FairLocker("fair:"+name), c.RWLocker("rw:"+name).Reader())
	}
	for range 3 {
		h := Must[*dlock.Hold](t)(dlock.All(lockers...).Acquire(ctx))
		for _, l := range lockers {
			if held := Must[bool](t)(l.IsHeld(h.Context())); !held {
				t.Errorf("%q isn't held", l.Name())
			}
		}
		if err := h.Release(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
		for _, l := range lockers {
			if held := Must[bool](t)(l.IsLocked(ctx)); held {
				t.Errorf("%q is held still", l.Name())
			}
		}
	}
}

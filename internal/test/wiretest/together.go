package wiretest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Writes counts the writes to connections.
type Writes struct{ n atomic.Int64 }

// Count returns the number of writes since the last call.
func (w *Writes) Count() int { return int(w.n.Swap(0)) }

// Conn returns a connection whose writes are counted.
func (w *Writes) Conn(c net.Conn) net.Conn { return countedConn{c, w} }

type countedConn struct {
	net.Conn
	w *Writes
}

func (c countedConn) Write(b []byte) (int, error) {
	c.w.n.Add(1)
	return c.Conn.Write(b)
}

// Together checks that one script acquires several locks with the same hash tag, and that another
// script releases them. A script handles up to a hundred locks.
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
		s.(backend.Batcher).AcquireBatch(ctx, reqs, func(
			i int, res backend.AcquireResult, err error,
		) {
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
		s.(backend.Batcher).ReleaseBatch(ctx, reqs, func(
			i int, res backend.ReleaseResult, err error,
		) {
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
	if got, errs := release(Alice); got[0].Outcome != backend.Freed ||
		got[1].Outcome != backend.Freed || got[2].Outcome != backend.Freed {
		t.Fatalf("the server doesn't know the script: %+v, %v", got, errs)
	}

	// A client may send the first commands before all commands are queued, so several attempts are
	// allowed.
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
	wantCommands(t, m, `"EVALSHA" "SHA" "3" "{x}a" "{x}b" "{x}c" "30000" `+
		Quoted(Alice, Alice, Alice))
	inOneWrite("release", func() { release(Alice) }, func() { acquire(Alice) })
	channels := Quoted("redisson_lock__channel:{x}a", "redisson_lock__channel:{x}b",
		"redisson_lock__channel:{x}c")
	wantCommands(t, m, `"EVALSHA" "SHA" "6" "{x}a" "{x}b" "{x}c" `+channels+
		` "0" "30000" `+Quoted(Alice, Alice, Alice))

	// Another owner holds the first lock, and the second name belongs to other data. The third lock
	// isn't affected.
	Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
		Name: names[0], Owner: Bob, Lease: Lease,
	}))
	client.HSet(ctx, names[1], "name", "bob")
	got, errs := acquire(Alice)
	if got[0].Acquired || got[0].Remaining <= 0 || errs[0] != nil ||
		!errors.Is(errs[1], backend.ErrConflict) || !got[2].Acquired || errs[2] != nil {
		t.Errorf("another's, no lock, and free: %+v, %v", got, errs)
	}
	freed, errs := release(Alice)
	if freed[0].Outcome != backend.NotHeld || errs[0] != nil ||
		!errors.Is(errs[1], backend.ErrConflict) || freed[2].Outcome != backend.Freed {
		t.Errorf("another's, no lock, and held: %+v, %v", freed, errs)
	}
	client.Del(ctx, names[1])
	release(Bob)

	// Locking and unlocking all three takes a client two round trips.
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
		if attempt > 0 && n == 2 && sent == 2 {
			break
		}
		if attempt == 20 {
			t.Fatalf("a pair takes %d writes and %d commands", n, sent)
		}
	}

	// A script handles at most a hundred locks, all with the same tag.
	var many []*dlock.Locker
	for i := range 250 {
		many = append(many, c.Locker(fmt.Sprintf("{many}%03d", i)))
	}
	m.Commands()
	h := Must[*dlock.Hold](t)(dlock.All(many...).Acquire(ctx))
	if got := scriptsFor(m, "{many}"); !slices.Equal(got, []int{100, 100, 50}) {
		t.Errorf("scripts for %d locks", got)
	}
	if n := client.Exists(ctx, "{many}000", "{many}100", "{many}249").Val(); n != 3 {
		t.Errorf("%d of three are there", n)
	}
	if err := h.Release(ctx); err != nil {
		t.Error(err)
	}
	if keys := client.Keys(ctx, "{many}*").Val(); len(keys) > 0 {
		t.Errorf("%q are left", keys)
	}
}

// scriptsFor returns how many times the tag occurs in each EVALSHA that contains it. That is the
// number of locks that the EVALSHA acquires or releases.
func scriptsFor(m *Monitor, tag string) (locks []int) {
	for _, cmd := range m.Commands() {
		if strings.HasPrefix(cmd, `"EVALSHA"`) && strings.Contains(cmd, tag) {
			locks = append(locks, strings.Count(cmd, tag))
		}
	}
	return locks
}

// TogetherInACluster checks that locks in several slots are acquired and released together, even if
// different nodes store them.
func TogetherInACluster(t *testing.T, b backend.Backend) {
	ctx := t.Context()
	c := locks(t, b)
	var lockers []*dlock.Locker
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		lockers = append(lockers, c.Locker("all:"+name), c.FairLocker("fair:"+name),
			c.RWLocker("rw:"+name).Reader(), c.Locker("{one}"+name), c.Locker("{two}"+name))
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

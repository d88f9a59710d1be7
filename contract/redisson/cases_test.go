package redisson_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A testCase is a case in which a version of Redisson and a client in Go use the same locks.
type testCase struct {
	name string
	run  func(t *testing.T, l *lab)
}

// exclusiveCases are about a lock with one holder at a time, of the lab's kind.
var exclusiveCases = []testCase{
	{"Go wakes Java", goWakesJava},
	{"Java wakes Go", javaWakesGo},
	{"Go sees that Java waits", goSeesWaiter},
	{"nobody waits too long", boundedWaits},
	{"Java re-enters", javaReenters},
	{"Go re-enters", goReenters},
	{"Java forces", javaForces},
	{"Go forces", goForces},
	{"leases end", leasesEnd},
	{"increments", increments},
}

// lockName returns a name for a lock that no other test uses. Some names have braces, which
// channels treat differently.
func lockName(t *testing.T) string {
	if strings.Contains(t.Name(), "wakes_Go") {
		return "{" + t.Name() + "}/braces"
	}
	return t.Name()
}

// lock locks a Locker in the background.
func lock(t *testing.T, l *dlock.Locker) <-chan error {
	locked := make(chan error, 1)
	go func() { locked <- l.LockContext(t.Context()) }()
	return locked
}

func wantNil(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("Go: %s: %v", what, err)
	}
}

func wantLock(t *testing.T, locked <-chan error) {
	t.Helper()
	wantNil(t, "lock", receive(t, "Go gets in", locked))
}

func wantLocked(t *testing.T, locked <-chan string) {
	t.Helper()
	if got := receive(t, "Java gets in", locked); got != "locked" {
		t.Fatalf("Java: lock: %s", got)
	}
}

func wantIs[T comparable](t *testing.T, what string, want T, ask func(context.Context) (T, error)) {
	t.Helper()
	if got, err := ask(t.Context()); err != nil || got != want {
		t.Errorf("Go: %s: %v, %v; want %v", what, got, err, want)
	}
}

// tryLock returns a function that says whether a Locker can be locked now.
func tryLock(l *dlock.Locker) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) { return l.TryLock(ctx) }
}

func goWakesJava(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.locker(l.client(t), name), l.thread(t)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	java.want("false", "tryLock", name)
	java.want("true", "isLocked", name)
	java.want("false", "isHeldByCurrentThread", name)
	java.want("0", "getHoldCount", name)
	java.wantNearly(longLease, "remainTimeToLive", name)
	java.wantNotHeld("unlock", name)

	second := l.thread(t)
	locked := second.start("lock", name)
	l.awaitThread(t, name, second)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	wantLocked(t, locked)
	l.wantHolds(t, name, l.held(second.owner, "1"))
	second.want("unlocked", "unlock", name)
	l.wantHolds(t, name, nil)
}

func javaWakesGo(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.locker(l.client(t), name), l.thread(t)
	java.want("locked", "lock", name)
	wantIs(t, "TryLock", false, tryLock(ours))
	wantIs(t, "IsLocked", true, ours.IsLocked)
	wantIs(t, "IsHeld", false, ours.IsHeld)
	wantIs(t, "HoldCount", 0, ours.HoldCount)
	if left, err := ours.TTL(t.Context()); err != nil || left > longLease || left < longLease/2 {
		t.Errorf("Go: TTL: %v, %v; want nearly %v", left, err, longLease)
	}
	if err := ours.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrNotHeld) {
		t.Errorf("Go: unlock what Java holds: %v", err)
	}

	second := l.client(t)
	waiter := l.locker(second, name)
	locked := lock(t, waiter)
	l.awaitWaiter(t, name, second.ID())
	java.want("unlocked", "unlock", name)
	wantLock(t, locked)
	wantNil(t, "unlock", waiter.UnlockContext(t.Context()))
	l.wantHolds(t, name, nil)
}

// goSeesWaiter is about a release that asks whether others wait. Redisson's waiters count, too.
func goSeesWaiter(t *testing.T, l *lab) {
	name := lockName(t)
	s := l.backend(t).Open()
	t.Cleanup(func() { s.Close() })
	acquire := func() {
		t.Helper()
		res, err := s.Acquire(t.Context(), backend.AcquireRequest{
			Kind: l.ours, Name: name, Owner: "go:1", Lease: longLease,
		})
		if err != nil || !res.Acquired {
			t.Fatalf("Go: acquire: %+v, %v", res, err)
		}
	}
	release := func() int {
		t.Helper()
		res, err := s.Release(t.Context(), backend.ReleaseRequest{
			Kind: l.ours, Name: name, Owner: "go:1", Lease: longLease, AskWaiting: true,
		})
		if err != nil || res.Outcome != backend.Freed {
			t.Fatalf("Go: release: %+v, %v", res, err)
		}
		return res.Waiting
	}
	acquire()
	if got := release(); got > 0 {
		t.Error("Go: somebody waits before anybody does")
	}
	acquire()
	java := l.thread(t)
	locked := java.start("lock", name)
	l.awaitThread(t, name, java)
	if got := release(); got != 1 {
		t.Errorf("Go: what a release says of those who wait, while Java does: %d", got)
	}
	wantLocked(t, locked)
	java.want("unlocked", "unlock", name)
}

func boundedWaits(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.locker(l.client(t), name), l.thread(t)
	const wait = 100 * time.Millisecond
	java.want("locked", "lock", name)
	// On a busy machine the store may answer only after the wait. Then the outcome is unknown,
	// which is an error.
	testservers.Until(t, "TryLock with a wait says that another has the lock", func() bool {
		ok, err := ours.TryLock(t.Context(), dlock.Wait(wait))
		return !ok && err == nil
	})
	testservers.Until(t, "nobody listens any more", func() bool {
		return l.subscribers(t, name) == 0
	})
	java.want("unlocked", "unlock", name)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	java.want("false", "tryLock", name, wait) // after too short a wait, it may stay subscribed
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
}

func javaReenters(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.thread(t)
	ours := l.locker(client, name)
	java.want("locked", "lock", name)
	java.want("true", "tryLock", name)
	java.want("locked", "lock", name)
	java.want("3", "getHoldCount", name)
	l.wantHolds(t, name, l.held(java.owner, "3"))
	l.thread(t).want("false", "tryLock", name)

	locked := lock(t, ours)
	l.awaitWaiter(t, name, client.ID())
	heard := l.listen(t, l.tells(t, name, client.ID()))
	for _, left := range []string{"2", "1"} {
		java.want("unlocked", "unlock", name)
		java.want(left, "getHoldCount", name)
		l.wantHolds(t, name, l.held(java.owner, left))
		wantIs(t, "TryLock", false, tryLock(l.locker(client, name)))
	}
	heard.want()
	java.want("unlocked", "unlock", name)
	heard.want(l.message)
	wantLock(t, locked)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
}

func goReenters(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.thread(t)
	ours := l.locker(client, name).For(dlock.NewOwner())
	for range 3 {
		wantNil(t, "lock", ours.LockContext(t.Context()))
	}
	wantIs(t, "HoldCount", 3, ours.HoldCount)
	l.wantHolds(t, name, l.held(client.ID(), "3"))
	java.want("0", "getHoldCount", name)

	locked := java.start("lock", name)
	l.awaitThread(t, name, java)
	heard := l.listen(t, l.tells(t, name, java.owner))
	for _, left := range []int{2, 1} {
		wantNil(t, "unlock", ours.UnlockContext(t.Context()))
		wantIs(t, "HoldCount", left, ours.HoldCount)
		l.wantHolds(t, name, l.held(client.ID(), strconv.Itoa(left)))
		l.thread(t).want("false", "tryLock", name)
	}
	heard.want()
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	heard.want(l.message)
	wantLocked(t, locked)
	java.want("unlocked", "unlock", name)
}

// javaForces is about a holder in Go that learns of its loss when it renews.
func javaForces(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.locker(l.client(t, dlock.WithLease(2*shortLease)), name), l.thread(t)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	locked := java.start("lock", name)
	l.awaitThread(t, name, java)
	l.thread(t).want("true", "forceUnlock", name)
	wantLocked(t, locked)

	<-ours.Lost(t.Context())
	wantIs(t, "IsHeld", false, ours.IsHeld)
	if err := ours.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Go: unlock: %v, want ErrLost", err)
	}
	l.wantHolds(t, name, l.held(java.owner, "1"))
	java.want("unlocked", "unlock", name)
	java.want("false", "forceUnlock", name)
}

// goForces is about a holder in Java that learns of its loss when it unlocks.
func goForces(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.thread(t)
	ours := l.locker(client, name)
	java.want("locked", "lock", name)
	locked := lock(t, ours)
	l.awaitWaiter(t, name, client.ID())
	wantIs(t, "ForceUnlock", true, l.locker(l.client(t), name).ForceUnlock)
	wantLock(t, locked)

	java.want("false", "isHeldByCurrentThread", name)
	java.wantNotHeld("unlock", name)
	l.wantHolds(t, name, l.held(client.ID(), "1"))
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	wantIs(t, "ForceUnlock", false, ours.ForceUnlock)
}

func leasesEnd(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.locker(l.client(t), name), l.thread(t)
	const lease = time.Second
	java.want("locked", "lock", name, lease)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	java.wantNotHeld("unlock", name)
	wantIs(t, "IsHeld", true, ours.IsHeld)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))

	wantNil(t, "lock", ours.LockContext(t.Context(), dlock.FixedLease(lease)))
	locked := java.start("lock", name)
	if l.ours == backend.Fair && l.java.version != versions[0] {
		// If an old version looks a moment too early, it computes a negative time, and sleeps until
		// it is notified.
		defer l.nudge(t, ownChannel(name, java.owner))()
	}
	wantLocked(t, locked)
	if err := ours.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Go: unlock after the lease: %v, want ErrLost", err)
	}
	java.want("true", "isHeldByCurrentThread", name)
	java.want("unlocked", "unlock", name)
}

// watchdogs is about locks of every kind, and permits, that both sides renew until the holders die.
func watchdogs(t *testing.T, p *place) {
	// if the machine stands still for two thirds of the lease, this test fails
	const lease = 5 * time.Second
	name := func(k kind, holder string) string { return lockName(t) + "/" + k.name + "/" + holder }
	theirs := make(map[string]*thread)
	for _, version := range versions {
		theirs[version] = startPeer(t, version, p.config, lease).thread(t)
	}
	client, survivor := p.client(t), startPeer(t, versions[0], p.config, longLease).thread(t)
	mortal := p.client(t, dlock.WithLease(lease))
	shared := p.client(t, dlock.WithLease(lease)).RWLocker(lockName(t) + "/shared").Reader()
	wantNil(t, "lock", shared.LockContext(t.Context(), dlock.FixedLease(longLease)))
	for _, java := range theirs {
		java.want("locked", "read.lock", shared.Name())
	}
	for _, k := range all {
		wantNil(t, "lock", k.locker(mortal, name(k, "Go")).LockContext(t.Context()))
		for version, java := range theirs {
			java.want("locked", k.java+"lock", name(k, version))
		}
	}

	permits := lockName(t) + "/permits"
	acquire(t, mortal.Semaphore(permits, 1), 1)

	for begin := time.Now(); time.Since(begin) < 5*lease/2 && !t.Failed(); time.Sleep(lease / 20) {
		survivor.want("none", "permits.tryAcquire", permits, 1)
		for _, k := range all {
			survivor.want("false", k.rival().java+"tryLock", name(k, "Go"))
			for version := range theirs {
				wantIs(t, "TryLock", false, tryLock(k.rival().locker(client, name(k, version))))
			}
		}
	}
	for _, k := range all {
		for version, java := range theirs {
			java.want("true", k.java+"isHeldByCurrentThread", name(k, version))
		}
	}
	testservers.Until(t, "a renewal of Java's has cut the lock short that it shares with Go",
		func() bool {
			return p.left(t, shared.Name()) <= lease
		})

	line := behindDying(t, &lab{p, survivor.peer, fair}, slices.Collect(maps.Values(theirs)))
	mortal.Close()
	for _, java := range theirs {
		java.peer.kill()
	}
	for _, k := range all {
		wantLocked(t, survivor.start(k.rival().java+"lock", name(k, "Go")))
		for version := range theirs {
			wantNil(t, "lock", k.rival().locker(client, name(k, version)).LockContext(t.Context()))
		}
	}
	wantIDs(t, 1, survivor.start("permits.acquire", permits, 1))
	for _, e := range line {
		e.await()
		e.leave()
	}
	// By now the lock that they shared with Go would have expired, too, if Go hadn't gone on
	// renewing it.
	survivor.want("false", "write.tryLock", shared.Name())
	wantIs(t, "IsHeld", true, shared.IsHeld)
	wantNil(t, "unlock", shared.UnlockContext(t.Context()))
	wantLocked(t, survivor.start("write.lock", shared.Name()))
}

// increments makes both sides increment a counter that loses simultaneous increments.
func increments(t *testing.T, l *lab) {
	const workers, each = 3, 20 // of each side
	name := lockName(t)
	var java []<-chan string
	for range workers {
		th := l.thread(t)
		java = append(java, th.start("increment", name, each))
	}
	var running sync.WaitGroup
	shared := l.client(t)
	running.Go(func() { l.increment(t, l.locker(shared, name), each) })
	running.Go(func() { l.increment(t, l.locker(shared, name), each) })
	alone := l.client(t)
	running.Go(func() { l.increment(t, l.locker(alone, name), each) })
	running.Wait()
	if l.ours == backend.Write {
		defer l.nudge(t, rwChannel(name))()
	}
	for _, done := range java {
		if got := receive(t, "Java has incremented", done); got != strconv.Itoa(each) {
			t.Errorf("Java: %s", got)
		}
	}
	if n, err := l.admin.Get(t.Context(), name+":counter").Int(); err != nil ||
		n != 2*workers*each {
		t.Errorf("counted %d, %v; want %d", n, err, 2*workers*each)
	}
}

// increment does the same as the Java program's method of that name.
func (p *place) increment(t *testing.T, l *dlock.Locker, times int) {
	ctx := t.Context()
	inside, counter := l.Name()+":inside", l.Name()+":counter"
	for range times {
		l.Lock()
		if alone, err := p.admin.SetNX(ctx, inside, "Go", 0).Result(); err != nil || !alone {
			t.Errorf("Go: inside with %s, %v", p.admin.Get(ctx, inside).Val(), err)
		}
		n, err := p.admin.Get(ctx, counter).Int()
		if err != nil && err != redis.Nil {
			t.Error(err)
		}
		if err := p.admin.Set(ctx, counter, n+1, 0).Err(); err != nil {
			t.Error(err)
		}
		if err := p.admin.Del(ctx, inside).Err(); err != nil {
			t.Error(err)
		}
		l.Unlock()
	}
}

package redisson_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/testservers"
)

// cases are what a version of Redisson and one of our backends do together.
var cases = []struct {
	name string
	run  func(t *testing.T, l *lab)
}{
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

// lockName is a name for a lock that no other test uses. Some have braces, which channels treat
// differently.
func lockName(t *testing.T) string {
	if strings.Contains(t.Name(), "wakes_Go") {
		return "{" + t.Name() + "}/braces"
	}
	return t.Name()
}

// lock has a Locker lock in the background.
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

func goWakesJava(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Locker(name), l.java.thread(t)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	java.want("false", "tryLock", name)
	java.want("true", "isLocked", name)
	java.want("false", "isHeldByCurrentThread", name)
	java.want("0", "getHoldCount", name)
	left, err := strconv.Atoi(java.do("remainTimeToLive", name))
	if err != nil || time.Duration(left)*time.Millisecond > longLease || time.Duration(left)*time.Millisecond < longLease/2 {
		t.Errorf("Java: remainTimeToLive: %d, %v; want nearly %v", left, err, longLease)
	}
	if got := java.do("unlock", name); !strings.HasPrefix(got, notHeld) {
		t.Errorf("Java: unlock what Go holds: %s", got)
	}

	second := l.java.thread(t)
	locked := second.start("lock", name)
	l.awaitWaiter(t, name, second.owner)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	wantLocked(t, locked)
	l.wantHolds(t, name, map[string]string{second.owner: "1"})
	second.want("unlocked", "unlock", name)
	l.wantHolds(t, name, nil)
}

// notHeld is how Redisson begins when a thread unlocks what it doesn't hold.
const notHeld = "java.lang.IllegalMonitorStateException: "

func javaWakesGo(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Locker(name), l.java.thread(t)
	java.want("locked", "lock", name)
	wantIs(t, "TryLock", false, func(ctx context.Context) (bool, error) { return ours.TryLock(ctx) })
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
	waiter := second.Locker(name)
	locked := lock(t, waiter)
	l.awaitWaiter(t, name, second.ID())
	java.want("unlocked", "unlock", name)
	wantLock(t, locked)
	wantNil(t, "unlock", waiter.UnlockContext(t.Context()))
	l.wantHolds(t, name, nil)
}

// goSeesWaiter is about a release that asks whether others wait. Redisson counts as anybody does.
func goSeesWaiter(t *testing.T, l *lab) {
	name := lockName(t)
	s := l.backend(t).Open()
	t.Cleanup(func() { s.Close() })
	acquire := func() {
		t.Helper()
		res, err := s.Acquire(t.Context(), backend.AcquireRequest{Name: name, Owner: "go:1", Lease: longLease})
		if err != nil || !res.Acquired {
			t.Fatalf("Go: acquire: %+v, %v", res, err)
		}
	}
	release := func() int {
		t.Helper()
		res, err := s.Release(t.Context(), backend.ReleaseRequest{Name: name, Owner: "go:1", Lease: longLease, AskWaiting: true})
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
	java := l.java.thread(t)
	locked := java.start("lock", name)
	l.awaitWaiter(t, name, java.owner)
	if got := release(); got != 1 {
		t.Errorf("Go: what a release says of those who wait, while Java does: %d", got)
	}
	wantLocked(t, locked)
	java.want("unlocked", "unlock", name)
}

func boundedWaits(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Locker(name), l.java.thread(t)
	const wait = 100 * time.Millisecond
	java.want("locked", "lock", name)
	// On a busy machine the store's answer may come later than that: then nobody knows, which is an error.
	testservers.Until(t, "TryLock with a wait says that another has the lock", func() bool {
		ok, err := ours.TryLock(t.Context(), dlock.Wait(wait))
		return !ok && err == nil
	})
	java.want("unlocked", "unlock", name)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	java.want("false", "tryLock", name, wait)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	testservers.Until(t, "nobody listens any more", func() bool { return l.subscribers(t, name) == 0 })
}

func javaReenters(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.java.thread(t)
	ours := client.Locker(name)
	java.want("locked", "lock", name)
	java.want("true", "tryLock", name)
	java.want("locked", "lock", name)
	java.want("3", "getHoldCount", name)
	l.wantHolds(t, name, map[string]string{java.owner: "3"})
	l.java.thread(t).want("false", "tryLock", name)

	locked := lock(t, ours)
	l.awaitWaiter(t, name, client.ID())
	heard := l.listen(t, name)
	for _, left := range []string{"2", "1"} {
		java.want("unlocked", "unlock", name)
		java.want(left, "getHoldCount", name)
		l.wantHolds(t, name, map[string]string{java.owner: left})
		wantIs(t, "TryLock", false, func(ctx context.Context) (bool, error) { return client.Locker(name).TryLock(ctx) })
	}
	heard.want()
	java.want("unlocked", "unlock", name)
	heard.want("0")
	wantLock(t, locked)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
}

func goReenters(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.java.thread(t)
	ours := client.Locker(name).For(dlock.NewOwner())
	for range 3 {
		wantNil(t, "lock", ours.LockContext(t.Context()))
	}
	wantIs(t, "HoldCount", 3, ours.HoldCount)
	owner := l.wantHolder(t, name, client.ID(), "3")
	java.want("0", "getHoldCount", name)

	locked := java.start("lock", name)
	l.awaitWaiter(t, name, java.owner)
	heard := l.listen(t, name)
	for _, left := range []int{2, 1} {
		wantNil(t, "unlock", ours.UnlockContext(t.Context()))
		wantIs(t, "HoldCount", left, ours.HoldCount)
		l.wantHolds(t, name, map[string]string{owner: strconv.Itoa(left)})
		l.java.thread(t).want("false", "tryLock", name)
	}
	heard.want()
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	heard.want("0")
	wantLocked(t, locked)
	java.want("unlocked", "unlock", name)
}

// javaForces is about a holder in Go that is told when it renews.
func javaForces(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t, dlock.WithLease(shortLease)).Locker(name), l.java.thread(t)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	locked := java.start("lock", name)
	l.awaitWaiter(t, name, java.owner)
	l.java.thread(t).want("true", "forceUnlock", name)
	wantLocked(t, locked)

	<-ours.Lost(t.Context())
	wantIs(t, "IsHeld", false, ours.IsHeld)
	if err := ours.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Go: unlock: %v, want ErrLost", err)
	}
	l.wantHolds(t, name, map[string]string{java.owner: "1"})
	java.want("unlocked", "unlock", name)
	java.want("false", "forceUnlock", name)
}

// goForces is about a holder in Java that is told when it unlocks.
func goForces(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.java.thread(t)
	ours := client.Locker(name)
	java.want("locked", "lock", name)
	locked := lock(t, ours)
	l.awaitWaiter(t, name, client.ID())
	wantIs(t, "ForceUnlock", true, l.client(t).Locker(name).ForceUnlock)
	wantLock(t, locked)

	java.want("false", "isHeldByCurrentThread", name)
	if got := java.do("unlock", name); !strings.HasPrefix(got, notHeld) {
		t.Errorf("Java: unlock what was forced: %s", got)
	}
	l.wantHolder(t, name, client.ID(), "1")
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	wantIs(t, "ForceUnlock", false, ours.ForceUnlock)
}

func leasesEnd(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Locker(name), l.java.thread(t)
	const lease = time.Second
	java.want("locked", "lock", name, lease)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	if got := java.do("unlock", name); !strings.HasPrefix(got, notHeld) {
		t.Errorf("Java: unlock after the lease: %s", got)
	}
	wantIs(t, "IsHeld", true, ours.IsHeld)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))

	wantNil(t, "lock", ours.LockContext(t.Context(), dlock.Lease(lease)))
	wantLocked(t, java.start("lock", name))
	if err := ours.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Go: unlock after the lease: %v, want ErrLost", err)
	}
	java.want("true", "isHeldByCurrentThread", name)
	java.want("unlocked", "unlock", name)
}

// watchdogs has locks renewed by everybody, until the holders die.
func watchdogs(t *testing.T, p *place) {
	const lease = 5 * time.Second // if the machine stands still for two thirds of it, this test fails
	name := func(holder string) string { return lockName(t) + "/" + holder }
	var theirs []*thread
	for _, version := range versions {
		java := startPeer(t, version, p.config, lease).thread(t)
		java.want("locked", "lock", name(version))
		theirs = append(theirs, java)
	}
	client, survivor := p.client(t), startPeer(t, versions[0], p.config, longLease).thread(t)
	mortal := p.client(t, dlock.WithLease(lease))
	ours := mortal.Locker(name("Go"))
	wantNil(t, "lock", ours.LockContext(t.Context()))

	for begin := time.Now(); time.Since(begin) < 5*lease/2 && !t.Failed(); time.Sleep(lease / 20) {
		survivor.want("false", "tryLock", name("Go"))
		for _, version := range versions {
			wantIs(t, "TryLock", false, func(ctx context.Context) (bool, error) { return client.Locker(name(version)).TryLock(ctx) })
		}
	}
	wantIs(t, "IsHeld", true, ours.IsHeld)
	for i, version := range versions {
		theirs[i].want("true", "isHeldByCurrentThread", name(version))
	}

	mortal.Close()
	for i := range versions {
		theirs[i].peer.kill()
	}
	wantLocked(t, survivor.start("lock", name("Go")))
	for _, version := range versions {
		wantNil(t, "lock", client.Locker(name(version)).LockContext(t.Context()))
	}
}

// increments is a load of both, on a counter that loses what two do at once.
func increments(t *testing.T, l *lab) {
	const workers, each = 3, 20 // of either kind
	name := lockName(t)
	var java []<-chan string
	for range workers {
		th := l.java.thread(t)
		java = append(java, th.start("increment", name, each*time.Millisecond))
	}
	var running sync.WaitGroup
	shared := l.client(t)
	running.Go(func() { l.increment(t, shared.Locker(name), each) })
	running.Go(func() { l.increment(t, shared.Locker(name), each) })
	alone := l.client(t)
	running.Go(func() { l.increment(t, alone.Locker(name), each) })
	running.Wait()
	for _, done := range java {
		if got := receive(t, "Java has incremented", done); got != strconv.Itoa(each) {
			t.Errorf("Java: %s", got)
		}
	}
	if n, err := l.admin.Get(t.Context(), name+":counter").Int(); err != nil || n != 2*workers*each {
		t.Errorf("counted %d, %v; want %d", n, err, 2*workers*each)
	}
}

// increment does what the Java program's method of that name does.
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

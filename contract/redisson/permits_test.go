package redisson_test

import (
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// permitCases are about semaphores. In Java each permit has an id, and may last forever.
var permitCases = []testCase{
	{"Go wakes Java", goPermitsWakeJava},
	{"Java wakes Go", javaPermitsWakeGo},
	{"several at once", severalAtOnce},
	{"Java's permits run out", javaPermitsEnd},
	{"Go's permits run out", goPermitsEnd},
	{"Java changes the number", javaChangesLimit},
	{"Go changes the number", goChangesLimit},
	{"Java says how many there are", javaSaysLimit},
	{"Java gives back what Go has", javaReleasesGos},
	{"both give up", permitsGiveUp},
	{"locks of that name", locksBesidePermits},
	{"in and out", entries},
}

// never is the lease of Java's permits that don't end by themselves.
const never = -time.Millisecond

// permitsThread returns a new thread of the Java program that calls methods of semaphores.
func (l *lab) permitsThread(t *testing.T) *thread {
	t.Helper()
	th := l.java.thread(t)
	th.kind = "permits."
	return th
}

// take acquires permits in Java, which must be free, and returns their ids.
func (th *thread) take(name string, n int, lease ...time.Duration) (ids []any) {
	th.t.Helper()
	wait := time.Duration(0)
	for _, id := range strings.Split(th.do("tryAcquire", name, n, wait, append(lease, never)[0]),
		",") {
		ids = append(ids, id)
	}
	if len(ids) != n || len(ids[0].(string)) != 32 {
		th.t.Fatalf("Java: tryAcquire %d: %v", n, ids)
	}
	return ids
}

// give gives back permits in Java, which must be taken.
func (th *thread) give(name string, ids ...any) {
	th.t.Helper()
	want := strconv.Itoa(len(ids))
	if len(ids) == 1 {
		want = "true"
	}
	th.want(want, "tryRelease", name, ids...)
}

// sleeping starts to acquire permits in Java, and waits until the thread sleeps.
func (l *lab) sleeping(t *testing.T, name string, n int) (th *thread, ids <-chan string) {
	t.Helper()
	th = l.permitsThread(t)
	ids = th.start("acquire", name, n)
	l.awaitSleep(t, th)
	return th, ids
}

// wantIDs waits for the ids of n permits.
func wantIDs(t *testing.T, n int, got <-chan string) []any {
	t.Helper()
	answer := receive(t, "Java gets in", got)
	ids := strings.Split(answer, ",")
	if len(ids) != n || len(ids[0]) != 32 {
		t.Fatalf("Java: acquire %d: %s", n, answer)
	}
	all := make([]any, n)
	for i, id := range ids {
		all[i] = id
	}
	return all
}

// acquire acquires permits in Go, which must be free.
func acquire(t *testing.T, s *dlock.Semaphore, n int, opts ...dlock.AcquireOption) *dlock.Hold {
	t.Helper()
	h, err := s.Acquire(t.Context(), n, append(opts, dlock.Wait(testservers.Patience))...)
	if err != nil {
		t.Fatalf("Go: acquire %d: %v", n, err)
	}
	return h
}

// wantHeld checks that Go doesn't get permits now.
func wantHeld(t *testing.T, s *dlock.Semaphore, n int) {
	t.Helper()
	if _, err := s.Acquire(t.Context(), n, dlock.Wait(0)); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("Go: acquire %d: %v, want ErrHeld", n, err)
	}
}

// waiting starts to acquire permits in Go, and waits until the client has tried, subscribed and
// tried again. No other party may try in the meantime.
func (l *lab) waiting(
	t *testing.T, ctx context.Context, s *dlock.Semaphore, n int,
) <-chan acquired {
	t.Helper()
	l.monitor.sync()
	before := l.monitor.triedPermits(s.Name())
	got := make(chan acquired, 1)
	go func() {
		h, err := s.Acquire(ctx, n)
		got <- acquired{h, err}
	}()
	testservers.Until(t, "it has tried, subscribed and tried again", func() bool {
		return l.monitor.triedPermits(s.Name()) >= before+2
	})
	if l.subscribers(t, s.Name()) == 0 {
		t.Errorf("Go waits for %s, but is not subscribed to its channel", s.Name())
	}
	return got
}

type acquired struct {
	hold *dlock.Hold
	err  error
}

func wantHold(t *testing.T, got <-chan acquired) *dlock.Hold {
	t.Helper()
	a := receive(t, "Go gets in", got)
	wantNil(t, "acquire", a.err)
	return a.hold
}

// triedPermits counts the attempts to get permits that changed nothing.
func (m *monitor) triedPermits(name string) (n int) {
	for _, c := range m.about(name) {
		changes := func(effect []string) bool {
			return slices.Contains([]string{"set", "incrby", "decrby", "zadd", "zrem", "del"},
				strings.ToLower(effect[0]))
		}
		if len(c.effects) > 0 && !slices.ContainsFunc(c.effects, changes) {
			n++
		}
	}
	return n
}

// wantPermits checks how many permits there are, and how many of them are taken. It asks both
// sides.
func (l *lab) wantPermits(t *testing.T, name string, all, out int) {
	t.Helper()
	java, client := l.permitsThread(t), l.client(t)
	java.want(strconv.Itoa(all-out), "availablePermits", name)
	java.want(strconv.Itoa(all), "getPermits", name)
	java.want(strconv.Itoa(out), "acquiredPermits", name)
	for _, limit := range []int{0, all} {
		wantIs(t, "Available", max(all-out, 0), client.Semaphore(name, limit).Available)
	}
}

// permitIDs returns the ids of the permits that are taken, in Java's form.
func (p *place) permitIDs(t *testing.T, name string) (ids []any) {
	t.Helper()
	members, err := p.admin.ZRange(t.Context(), permitsKey(name), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		ids = append(ids, hex.EncodeToString([]byte(m)))
	}
	return ids
}

// permitEnds returns when a permit ends, by the server's clock.
func (p *place) permitEnds(t *testing.T, name string, id any) time.Time {
	t.Helper()
	member, err := hex.DecodeString(id.(string))
	if err != nil {
		t.Fatal(err)
	}
	end, err := p.admin.ZScore(t.Context(), permitsKey(name), string(member)).Result()
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMilli(int64(end))
}

func goPermitsWakeJava(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Semaphore(name, 3), l.permitsThread(t)
	h := acquire(t, ours, 2)
	l.wantPermits(t, name, 3, 2)
	java.want("none", "tryAcquire", name, 2)
	first := java.take(name, 1)
	l.wantPermits(t, name, 3, 3)
	java.want("none", "tryAcquire", name, 1)

	second, ids := l.sleeping(t, name, 1)
	heard := l.listen(t, scChannel(name))
	release(t, h)
	heard.want("2")
	second.give(name, wantIDs(t, 1, ids)...)
	l.wantPermits(t, name, 3, 1)
	java.give(name, first...)
	java.want("false", "tryRelease", name, first...)
	l.wantPermits(t, name, 3, 0)
}

func javaPermitsWakeGo(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Semaphore(name, 3), l.permitsThread(t)
	java.want("true", "trySetPermits", name, 3)
	ids := java.take(name, 2)
	l.wantPermits(t, name, 3, 2)
	wantHeld(t, ours, 2)
	h := acquire(t, ours, 1)
	l.wantPermits(t, name, 3, 3)

	waiting := l.waiting(t, t.Context(), ours, 1)
	java.give(name, ids[0])
	second := wantHold(t, waiting)
	l.wantPermits(t, name, 3, 3)
	release(t, h)
	release(t, second)
	l.wantPermits(t, name, 3, 1)
	java.give(name, ids[1])
	l.wantPermits(t, name, 3, 0)
}

func severalAtOnce(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Semaphore(name, 3), l.permitsThread(t)
	java.want("true", "trySetPermits", name, 3)
	ids := java.take(name, 3)
	waiting := l.waiting(t, t.Context(), ours, 3)
	for _, id := range ids[:2] {
		l.monitor.sync()
		tried := l.monitor.triedPermits(name)
		java.give(name, id)
		testservers.Until(t, "Go has tried again", func() bool {
			return l.monitor.triedPermits(name) > tried
		})
	}
	java.give(name, ids[2])
	h := wantHold(t, waiting)
	l.wantPermits(t, name, 3, 3)

	release(t, h)
	h = acquire(t, ours, 1)
	java.want("none", "tryAcquire", name, 3)
	release(t, h)
	ids = java.take(name, 3)
	wantHeld(t, ours, 1)
	java.give(name, ids...)
	l.wantPermits(t, name, 3, 0)
}

// javaPermitsEnd is about permits of Java's that end, and others that don't.
func javaPermitsEnd(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Semaphore(name, 4), l.permitsThread(t)
	java.want("true", "trySetPermits", name, 4)
	forever, long, ended := java.take(name, 1), java.take(name, 1, longLease),
		java.take(name, 2, dead)
	end := l.permitEnds(t, name, ended[0])
	h := acquire(t, ours, 2)
	if now, err := l.admin.Time(t.Context()).Result(); err != nil || now.Before(end) {
		t.Errorf("Go: inside at %v, %v; Java's permits end at %v", now, err, end)
	}
	for _, id := range ended {
		java.want("false", "tryRelease", name, id)
	}
	java.want("0", "tryRelease", name, ended...)
	l.wantPermits(t, name, 4, 4)
	release(t, h)
	l.wantPermits(t, name, 4, 2)
	java.give(name, append(forever, long...)...)
	l.wantPermits(t, name, 4, 0)
}

// goPermitsEnd is about permits of Go's with a fixed lease, and permits of a client that has died.
func goPermitsEnd(t *testing.T, l *lab) {
	name := lockName(t)
	mortal, ours, java := l.client(t, dlock.WithLease(shortLease)), l.client(t).Semaphore(name, 4),
		l.permitsThread(t)
	fixed := acquire(t, mortal.Semaphore(name, 4), 4, dlock.FixedLease(dead))
	java.give(name, wantIDs(t, 1, java.start("acquire", name, 1))...)
	if err := fixed.Release(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Go: release after the lease: %v, want ErrLost", err)
	}
	l.wantPermits(t, name, 4, 0)

	acquire(t, mortal.Semaphore(name, 4), 4)
	java, ids := l.sleeping(t, name, 1)
	got := l.waiting(t, t.Context(), ours, 3)
	mortal.Close()
	java.give(name, wantIDs(t, 1, ids)...)
	release(t, wantHold(t, got))
	l.wantPermits(t, name, 4, 0)
}

// javaChangesLimit is about callers in Go that leave the limit to Java.
func javaChangesLimit(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Semaphore(name, 0), l.permitsThread(t)
	java.want("set", "setPermits", name, 2)
	h := acquire(t, ours, 2)
	l.wantPermits(t, name, 2, 2)
	waiting := l.waiting(t, t.Context(), ours, 2)
	java.want("set", "setPermits", name, 4)
	second := wantHold(t, waiting)
	l.wantPermits(t, name, 4, 4)

	java.want("added", "addPermits", name, -2)
	l.wantPermits(t, name, 2, 4)
	waiting = l.waiting(t, t.Context(), ours, 1)
	release(t, h)
	l.wantPermits(t, name, 2, 2)
	java.want("added", "addPermits", name, 1)
	third := wantHold(t, waiting)
	l.wantPermits(t, name, 3, 3)
	release(t, second)
	release(t, third)
	l.wantPermits(t, name, 3, 0)
	java.want("set", "setPermits", name, 1)
	l.wantPermits(t, name, 1, 0)
}

// goChangesLimit is about a deployment of programs with a higher limit than those before.
func goChangesLimit(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.permitsThread(t)
	few, many := client.Semaphore(name, 2), client.Semaphore(name, 4)
	h := acquire(t, few, 2)
	wantHeld(t, few, 1)
	sleeping, ids := l.sleeping(t, name, 1)
	more := acquire(t, many, 1) // wakes Java, since the limit is higher
	theirs := wantIDs(t, 1, ids)
	l.wantPermits(t, name, 4, 4)
	wantIs(t, "Available", 0, few.Available)
	wantHeld(t, many, 1)

	sleeping.give(name, theirs...)
	wantIs(t, "Available", 1, many.Available)
	wantIs(t, "Available", 0, few.Available)
	wantHeld(t, few, 1)
	release(t, h)
	h = acquire(t, few, 1)
	l.wantPermits(t, name, 2, 2)
	java.want("none", "tryAcquire", name, 1)

	java.want("set", "setPermits", name, 10)
	l.wantPermits(t, name, 10, 2)
	release(t, more)
	more = acquire(t, many, 1)
	l.wantPermits(t, name, 4, 2)
	java.want("none", "tryAcquire", name, 3)
	release(t, h)
	release(t, more)
	l.wantPermits(t, name, 4, 0)
}

// javaSaysLimit is about callers in Go that don't know the limit.
func javaSaysLimit(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.permitsThread(t)
	ours := client.Semaphore(name, 0)
	wantNoLimit := func() {
		t.Helper()
		if _, err := ours.Acquire(t.Context(), 1); !errors.Is(err, dlock.ErrNoLimit) {
			t.Errorf("Go: acquire: %v, want ErrNoLimit", err)
		}
		if _, err := ours.Available(t.Context()); !errors.Is(err, dlock.ErrNoLimit) {
			t.Errorf("Go: Available: %v, want ErrNoLimit", err)
		}
	}
	wantNoLimit()
	java.want("true", "trySetPermits", name, 2)
	if _, err := ours.Acquire(t.Context(), 3); !errors.Is(err, dlock.ErrTooMany) {
		t.Errorf("Go: acquire 3 of 2: %v, want ErrTooMany", err)
	}
	h := acquire(t, ours, 2)
	wantHeld(t, ours, 1)
	java.want("none", "tryAcquire", name, 1)
	release(t, h)
	l.wantPermits(t, name, 2, 0)
	java.want("true", "delete", name)
	wantNoLimit()
	release(t, acquire(t, client.Semaphore(name, 3), 1))
	java.want("false", "trySetPermits", name, 2)
	l.wantPermits(t, name, 3, 0)
}

// javaReleasesGos is about a hold of which Java gives back one permit. The whole hold is lost.
func javaReleasesGos(t *testing.T, l *lab) {
	name := lockName(t)
	// The lease must outlive a standstill of this process. The holder is told with a renewal.
	h := acquire(t, l.client(t, dlock.WithLease(3*shortLease)).Semaphore(name, 4), 3)
	ids := l.permitIDs(t, name)
	ours, java := l.client(t).Semaphore(name, 4), l.permitsThread(t)
	theirs := java.take(name, 1)
	got := l.waiting(t, t.Context(), ours, 3)
	java.give(name, ids[1])
	receive(t, "Go is told that it has lost its permits", closed(h.Lost()))
	if left := l.permitIDs(t, name); slices.ContainsFunc(ids, func(id any) bool {
		return slices.Contains(left, id)
	}) {
		t.Errorf("what is left of a hold of %v: %v", ids, left)
	}
	second := wantHold(t, got)
	if err := h.Release(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Go: release: %v, want ErrLost", err)
	}
	for _, id := range ids {
		java.want("false", "tryRelease", name, id)
	}
	l.wantPermits(t, name, 4, 4)
	release(t, second)
	java.give(name, theirs...)
	l.wantPermits(t, name, 4, 0)
}

func permitsGiveUp(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java := l.client(t).Semaphore(name, 2), l.permitsThread(t)
	java.want("true", "trySetPermits", name, 2)
	ids := java.take(name, 2)
	ctx, giveUp := context.WithCancel(t.Context())
	gone := l.waiting(t, ctx, ours, 2)
	giveUp()
	if err := receive(t, "Go gives up", gone).err; !errors.Is(err, context.Canceled) {
		t.Errorf("Go: acquire: %v", err)
	}
	testservers.Until(t, "nobody listens any more", func() bool {
		return l.subscribers(t, name) == 0
	})
	java.give(name, ids...)
	l.wantPermits(t, name, 2, 0)

	h := acquire(t, ours, 2)
	java.want("none", "tryAcquire", name, 1, 100*time.Millisecond, never)
	release(t, h)
	l.wantPermits(t, name, 2, 0)
}

// locksBesidePermits is about locks under the name of a semaphore.
func locksBesidePermits(t *testing.T, l *lab) {
	name := lockName(t)
	client, java, permits := l.client(t), l.java.thread(t), l.permitsThread(t)
	ours := client.Semaphore(name, 1)
	wantConflict := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, dlock.ErrConflict) {
			t.Errorf("Go: %s: %v, want ErrConflict", what, err)
		}
	}
	for _, k := range all {
		java.want("locked", k.java+"lock", name)
		_, err := ours.Acquire(t.Context(), 1)
		wantConflict("acquire where Java holds a "+k.name+" lock", err)
		_, err = ours.Available(t.Context())
		wantConflict("Available where Java holds a "+k.name+" lock", err)
		l.wantHolds(t, name, k.held(java.owner, "1"))
		java.want("unlocked", k.java+"unlock", name)
	}
	permits.want("true", "trySetPermits", name, 1)
	for _, k := range all {
		_, err := k.locker(client, name).TryLock(t.Context())
		wantConflict("a "+k.name+" lock where Java has a semaphore", err)
	}
	h := acquire(t, ours, 1)
	for _, k := range all {
		if got := java.do(k.java+"tryLock", name); !strings.Contains(got, "WRONGTYPE") {
			t.Errorf("Java: a %s lock where Go has permits: %s", k.name, got)
		}
	}
	release(t, h)
	l.wantPermits(t, name, 1, 0)
}

// entries makes both sides contend for three permits.
func entries(t *testing.T, l *lab) {
	const limit, workers, each = 3, 3, 20 // workers: of each side
	name := lockName(t)
	l.permitsThread(t).want("true", "trySetPermits", name, limit)
	var java []<-chan string
	for i := range workers {
		java = append(java, l.permitsThread(t).start("enter", name, each, 1+i%2, limit))
	}
	var running sync.WaitGroup
	shared := l.client(t)
	running.Go(func() { l.enter(t, shared.Semaphore(name, limit), each, 1, limit) })
	running.Go(func() { l.enter(t, shared.Semaphore(name, limit), each, limit, limit) })
	alone := l.client(t)
	running.Go(func() { l.enter(t, alone.Semaphore(name, 0), each, 2, limit) })
	running.Wait()
	for _, done := range java {
		if got := receive(t, "Java is done", done); got != strconv.Itoa(each) {
			t.Errorf("Java: %s", got)
		}
	}
	l.wantPermits(t, name, limit, 0)
}

// enter does what the Java program's method of that name does.
func (p *place) enter(t *testing.T, s *dlock.Semaphore, times, n, limit int) {
	ctx := t.Context()
	inside := s.Name() + ":inside"
	for range times {
		err := s.Do(ctx, n, func(context.Context) error {
			if out, err := p.admin.IncrBy(ctx, inside, int64(n)).Result(); err != nil ||
				out > int64(limit) {
				t.Errorf("Go: %d inside, %v", out, err)
			}
			return p.admin.DecrBy(ctx, inside, int64(n)).Err()
		})
		if err != nil {
			t.Error(err)
		}
	}
}

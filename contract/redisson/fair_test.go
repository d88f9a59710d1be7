package redisson_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// fairCases are about the line of waiters for a fair lock. The waiters in Go are visitors, so that
// a test controls their requests. The last cases use Lockers, as users do.
var fairCases = []testCase{
	{"a line of both", lineOfBoth},
	{"Java makes room for Go", javaMakesRoom},
	{"Go makes room for Java", goMakesRoom},
	{"Go makes room for Go before Java", goMakesRoomForGo},
	{"nobody passes who waits", nobodyPasses},
	{"Java's turns don't cost Go's places", javaTakesItsWait},
	{"both give up", fairGiveUps},
	{"Java forces, Go is next", javaForcesForGo},
	{"Go forces, Java is next", goForcesForJava},
	{"Java dies in line", javaDiesInLine},
	{"Go dies in line", goDiesInLine},
	{"Go dies in line, before Java alone", goDiesInLineBeforeJava},
	{"Go dies when it is its turn", goDiesInTurn},
	{"Go dies when it is its turn, before Java alone", goDiesBeforeJava},
	{"plain and fenced locks of that name", plainBesideFair},
	{"Lockers and threads in line", lockersInLine},
	{"Lockers and threads give up", lockersGiveUp},
}

// fairLockerCases are the exclusiveCases that also hold for a fair lock.
var fairLockerCases = slices.DeleteFunc(slices.Clone(exclusiveCases), func(c testCase) bool {
	// a fair lock is handed over by the store, so a release needn't count waiters
	return c.name == "Go sees that Java waits"
})

// fairThread returns a new thread of the Java program that calls methods of fair locks.
func (l *lab) fairThread(t *testing.T) *thread {
	t.Helper()
	th := l.java.thread(t)
	th.kind = fair.java
	return th
}

// awaitWaiter waits until an owner that has not tried before waits for a message. The name of a
// client in Go is its ID. A fair lock must be held by Java.
func (l *lab) awaitWaiter(t *testing.T, name, owner string) {
	t.Helper()
	if l.ours == backend.Fair {
		l.awaitListener(t, name, owner)
	} else {
		l.place.awaitWaiter(t, name, owner)
	}
}

// awaitThread is awaitWaiter for a thread of Java's. A message to all waiters wakes only the
// threads that have fallen asleep already.
func (l *lab) awaitThread(t *testing.T, name string, th *thread) {
	t.Helper()
	l.awaitWaiter(t, name, th.owner)
	l.awaitSleep(t, th)
}

// tells returns the channel on which Java tells this waiting owner that the lock is free.
func (l *lab) tells(t *testing.T, name, owner string) string {
	t.Helper()
	if l.ours == backend.Fair {
		return ownChannel(name, l.awaitPlace(t, name, owner))
	}
	return l.channel(name)
}

// An entrant is a waiter in line.
type entrant struct {
	owner string
	await func() // waits until it has the lock
	leave func()
}

// queueThread makes a thread of Java's wait in line.
func (l *lab) queueThread(t *testing.T, name string) entrant {
	t.Helper()
	th := l.fairThread(t)
	locked := th.start("lock", name)
	l.awaitPlace(t, name, th.owner)
	l.awaitSleep(t, th)
	return entrant{th.owner, func() {
		t.Helper()
		wantLocked(t, locked)
	}, func() {
		t.Helper()
		th.want("unlocked", "unlock", name)
	}}
}

// queueVisitor makes a visitor wait in line.
func (l *lab) queueVisitor(t *testing.T, name string, place time.Duration) entrant {
	t.Helper()
	v := l.visitor(t, name)
	inside := v.enter(place)
	l.awaitPlace(t, name, v.owner)
	return entrant{v.owner, func() {
		t.Helper()
		wantNil(t, "acquire", receive(t, "Go gets in", inside))
	}, func() {
		t.Helper()
		v.release(backend.Freed)
	}}
}

// queueLocker makes a Locker wait in line.
func (l *lab) queueLocker(t *testing.T, name string) entrant {
	t.Helper()
	client := l.client(t)
	ours := client.FairLocker(name)
	locked := lock(t, ours)
	owner := l.awaitPlace(t, name, client.ID())
	return entrant{owner, func() {
		t.Helper()
		wantLock(t, locked)
	}, func() {
		t.Helper()
		wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	}}
}

// wantTurns checks that the waiters in line get the lock one after the other, and that no other
// call gets it in between.
func (l *lab) wantTurns(t *testing.T, name string, line []entrant) {
	t.Helper()
	java, ours := l.fairThread(t), l.visitor(t, name)
	for i, e := range line {
		e.await()
		l.wantInside(t, name, e.owner)
		// this removes the places that Redisson considers expired
		java.want("false", "tryLock", name)
		ours.wantTry(false)
		var left []string
		for _, waits := range line[i+1:] {
			left = append(left, waits.owner)
		}
		l.wantLine(t, name, left...)
		e.leave()
	}
	l.wantGone(t, name, queueKey(name), timeoutKey(name))
}

// wantInside checks that this owner has the lock, once.
func (p *place) wantInside(t *testing.T, name, owner string) {
	t.Helper()
	fields, err := p.admin.HGetAll(t.Context(), name).Result()
	for field, count := range fields {
		if !strings.Contains(field, owner) || count != "1" {
			err = errors.New("it is another's")
		}
	}
	if err != nil || len(fields) != 1 {
		t.Errorf("HGETALL %s: %v, %v; want %s once", name, fields, err, owner)
	}
}

func lineOfBoth(t *testing.T, l *lab) {
	name := lockName(t)
	first := l.visitor(t, name)
	first.wantTry(true)
	var line []entrant
	for range 3 {
		line = append(line, l.queueThread(t, name), l.queueVisitor(t, name, placeLease))
	}
	var owners []string
	for _, e := range line {
		owners = append(owners, e.owner)
	}
	l.wantLine(t, name, owners...)
	first.release(backend.Freed)
	l.wantTurns(t, name, line)
}

func lockersInLine(t *testing.T, l *lab) {
	name := lockName(t)
	java := l.fairThread(t)
	java.want("locked", "lock", name)
	var line []entrant
	for range 3 {
		line = append(line, l.queueLocker(t, name), l.queueThread(t, name))
	}
	java.want("unlocked", "unlock", name)
	l.wantTurns(t, name, line)
}

// javaMakesRoom is about one message, to the next in line, which then asks once. No waiter polls in
// this case.
func javaMakesRoom(t *testing.T, l *lab) {
	name := lockName(t)
	java := l.fairThread(t)
	java.want("locked", "lock", name)
	next, behind := l.queueVisitor(t, name, longLease), l.queueVisitor(t, name, longLease)
	l.awaitListener(t, name, next.owner)
	l.awaitListener(t, name, behind.owner)
	heard := l.listen(t, ownChannel(name, l.inLine(t, name)[0]))
	l.monitor.sync()
	asked, askedBehind := l.monitor.asked(name, next.owner), l.monitor.asked(name, behind.owner)
	java.want("unlocked", "unlock", name)
	next.await()
	heard.want("0")
	l.monitor.sync()
	if got := l.monitor.asked(name, next.owner) - asked; got != 1 {
		t.Errorf("Go: whoever is next asks %d times, want once", got)
	}
	if got := l.monitor.asked(name, behind.owner) - askedBehind; got != 0 {
		t.Errorf("Go: whoever is behind asks %d times", got)
	}
	next.leave()
	behind.await()
	behind.leave()
}

func goMakesRoom(t *testing.T, l *lab) {
	name := lockName(t)
	first := l.visitor(t, name)
	first.wantTry(true)
	next, behind := l.queueThread(t, name), l.queueThread(t, name)
	heard, heardBehind := l.listen(t, ownChannel(name, next.owner)),
		l.listen(t, ownChannel(name, behind.owner))
	l.monitor.sync()
	asked, askedBehind := l.monitor.asked(name, next.owner), l.monitor.asked(name, behind.owner)
	first.release(backend.Freed)
	next.await()
	heard.want("0")
	heardBehind.want()
	l.monitor.sync()
	if got := l.monitor.asked(name, next.owner) - asked; got != 1 {
		t.Errorf("Java: whoever is next asks %d times, want once", got)
	}
	if got := l.monitor.asked(name, behind.owner) - askedBehind; got != 0 {
		t.Errorf("Java: whoever is behind asks %d times", got)
	}
	next.leave()
	heardBehind.want("0")
	behind.await()
	behind.leave()
}

// goMakesRoomForGo is about a lock that is granted to the next in line, which has it without a
// request.
func goMakesRoomForGo(t *testing.T, l *lab) {
	name := lockName(t)
	first := l.visitor(t, name)
	first.wantTry(true)
	next, behind := l.queueVisitor(t, name, longLease), l.queueThread(t, name)
	l.monitor.sync()
	asked := l.monitor.asked(name, next.owner)
	first.release(backend.Freed)
	next.await()
	l.wantInside(t, name, next.owner)
	l.monitor.sync()
	if got := l.monitor.asked(name, next.owner) - asked; got != 0 {
		t.Errorf("Go: whoever is next asks %d times, though it has got the lock", got)
	}
	next.leave()
	behind.await()
	behind.leave()
}

// nobodyPasses is about a free lock whose next waiter, in Java, doesn't come. It is also about a
// place whose time is lost, so that Redisson would wait for its owner forever.
func nobodyPasses(t *testing.T, l *lab) {
	name := lockName(t)
	first := l.visitor(t, name)
	first.wantTry(true)
	dead := l.leavePlace(t, name, longLease)
	first.release(backend.Freed)
	l.wantGone(t, name)
	l.fairThread(t).want("false", "tryLock", name)
	first.wantTry(false)
	next := l.queueVisitor(t, name, placeLease)
	l.wantLine(t, name, dead, next.owner)
	l.wantGone(t, name)
	if err := l.admin.ZRem(t.Context(), timeoutKey(name), dead).Err(); err != nil {
		t.Fatal(err)
	}
	l.wantTurns(t, name, []entrant{next})
}

// leavePlace makes a thread of Java's wait in line and then leave its place there, like a thread
// whose process is killed. The place lasts as long as the present hold of the lock, plus wait,
// which is doubled if the thread has given up in the meantime.
func (l *lab) leavePlace(t *testing.T, name string, wait time.Duration) (owner string) {
	t.Helper()
	th, asks := l.fairThread(t), l.java.thread(t)
	for answer := ""; !strings.HasPrefix(answer, "java.lang.InterruptedException"); wait *= 2 {
		gone := th.start("tryLock", name, wait)
		testservers.Until(t, "it sleeps, or has given up", func() bool {
			return len(gone) > 0 || asks.do("sleeps", th.owner) == "true"
		})
		asks.want("interrupted", "interrupt", th.owner)
		if answer = receive(t, "Java leaves", gone); answer == "true" {
			t.Fatal("Java: tryLock what another holds: true")
		}
	}
	return th.owner
}

// javaDiesInLine is about a place in Java whose owner doesn't come back. It lasts as long as
// Redisson has set it to.
func javaDiesInLine(t *testing.T, l *lab) {
	name := lockName(t)
	first := l.visitor(t, name)
	first.lease = 2 * shortLease
	first.wantTry(true)
	l.leavePlace(t, name, dead)
	if held, err := first.renew(longLease); !held || err != nil {
		t.Fatalf("Go: renew: %v, %v", held, err)
	}
	line := []entrant{l.queueVisitor(t, name, placeLease), l.queueThread(t, name)}
	first.release(backend.Freed)
	l.wantTurns(t, name, line)
}

// behindDying makes threads wait in line for a lock whose holder has died. Other waiters stand
// behind them, and get the lock when the threads' processes are gone and their places have expired.
func behindDying(t *testing.T, l *lab, dying []*thread) []entrant {
	t.Helper()
	name := lockName(t) + "/line"
	first := l.visitor(t, name)
	first.lease = shortLease
	first.wantTry(true)
	for _, th := range dying {
		th.start("fair.tryLock", name, shortLease)
		l.awaitPlace(t, name, th.owner)
	}
	return []entrant{l.queueVisitor(t, name, placeLease), l.queueThread(t, name)}
}

// javaTakesItsWait is about a thread with a longer wait than others. When its turn comes, Redisson
// subtracts that wait from the times of all places.
func javaTakesItsWait(t *testing.T, l *lab) {
	name := lockName(t)
	first := l.visitor(t, name)
	first.wantTry(true)
	java := l.fairThread(t)
	locked := java.start("tryLock", name, 20*time.Minute)
	l.awaitPlace(t, name, java.owner)
	l.awaitSleep(t, java)
	line := []entrant{
		l.queueVisitor(t, name, longLease), l.queueThread(t, name),
		l.queueVisitor(t, name, longLease),
	}
	first.release(backend.Freed)
	if got := receive(t, "Java gets in", locked); got != "true" {
		t.Fatalf("Java: tryLock: %s", got)
	}
	l.fairThread(t).want("false", "tryLock", name)
	l.wantLine(t, name, line[0].owner, line[1].owner, line[2].owner)
	java.want("unlocked", "unlock", name)
	l.wantTurns(t, name, line)
}

func fairGiveUps(t *testing.T, l *lab) {
	name := lockName(t)
	first, leaves := l.visitor(t, name), l.visitor(t, name)
	first.wantTry(true)
	java := l.fairThread(t)
	gone := java.start("tryLock", name, dead)
	testservers.Until(t, "Java stands in line, or has given up", func() bool {
		return len(gone) > 0 || slices.Contains(l.inLine(t, name), java.owner)
	})
	if ok, err := leaves.try(longLease); ok || err != nil {
		t.Fatalf("Go: acquire: %v, %v", ok, err)
	}
	line := []entrant{l.queueVisitor(t, name, longLease), l.queueThread(t, name)}
	if got := receive(t, "Java gives up", gone); got != "false" {
		t.Errorf("Java: tryLock: %s", got)
	}
	l.wantLine(t, name, leaves.owner, line[0].owner, line[1].owner)
	leaves.release(backend.NotHeld)
	l.wantLine(t, name, line[0].owner, line[1].owner)
	first.release(backend.Freed)
	l.wantTurns(t, name, line)

	java.want("locked", "lock", name)
	if ok, err := leaves.try(longLease); ok || err != nil {
		t.Fatalf("Go: acquire: %v, %v", ok, err)
	}
	next := l.queueThread(t, name)
	leaves.release(backend.NotHeld)
	l.wantLine(t, name, next.owner)
	java.want("unlocked", "unlock", name)
	l.wantTurns(t, name, []entrant{next})
}

// javaForcesForGo is about a holder in Go. No client in Go listens to Java's message to the next in
// line, so the next one polls.
func javaForcesForGo(t *testing.T, l *lab) {
	name := lockName(t)
	first := l.visitor(t, name)
	first.wantTry(true)
	line := []entrant{l.queueVisitor(t, name, placeLease), l.queueThread(t, name)}
	l.fairThread(t).want("true", "forceUnlock", name)
	line[0].await()
	first.release(backend.NotHeld)
	l.wantInside(t, name, line[0].owner)
	line[0].leave()
	l.wantTurns(t, name, line[1:])
}

func goForcesForJava(t *testing.T, l *lab) {
	name := lockName(t)
	java := l.fairThread(t)
	java.want("locked", "lock", name)
	line := []entrant{l.queueThread(t, name), l.queueVisitor(t, name, longLease)}
	l.visitor(t, name).force()
	line[0].await()
	java.wantNotHeld("unlock", name)
	l.visitor(t, name).force()
	line[1].await()
	l.wantInside(t, name, line[1].owner)
	line[1].leave()
	l.fairThread(t).want("false", "forceUnlock", name)
}

// goDiesInLine is about a place in Go that isn't kept. The next step from Go removes it.
func goDiesInLine(t *testing.T, l *lab) {
	name := lockName(t)
	java, dies := l.fairThread(t), l.visitor(t, name)
	java.want("locked", "lock", name)
	if ok, err := dies.try(dead); ok || err != nil {
		t.Fatalf("Go: acquire: %v, %v", ok, err)
	}
	line := []entrant{l.queueThread(t, name), l.queueVisitor(t, name, placeLease)}
	testservers.Until(t, "the place is over", func() bool {
		return len(l.inLine(t, name)) == len(line)
	})
	java.want("unlocked", "unlock", name)
	l.wantTurns(t, name, line)
}

// goDiesInLineBeforeJava is goDiesInLine without other waiters in Go. Redisson assumes that the
// place lasts for many more minutes. Any request from Go removes it, and notifies Java.
func goDiesInLineBeforeJava(t *testing.T, l *lab) {
	name := lockName(t)
	java, dies, asks := l.fairThread(t), l.visitor(t, name), l.visitor(t, name)
	java.want("locked", "lock", name)
	if ok, err := dies.try(dead); ok || err != nil {
		t.Fatalf("Go: acquire: %v, %v", ok, err)
	}
	line := []entrant{l.queueThread(t, name)}
	java.want("unlocked", "unlock", name)
	testservers.Until(t, "nobody waits", func() bool {
		asks.wantTry(false)
		return len(l.inLine(t, name)) == 0
	})
	l.wantTurns(t, name, line)
}

// goDiesInTurn is about a waiter in Go that dies after it was granted the lock. The next in line,
// in Java, is notified by the next waiter in Go, which keeps its own place.
func goDiesInTurn(t *testing.T, l *lab) {
	name := lockName(t)
	first := l.beforeDead(t, name, longLease)
	line := []entrant{l.queueThread(t, name), l.queueVisitor(t, name, placeLease)}
	first.release(backend.Freed)
	l.wantTurns(t, name, line)
}

// goDiesBeforeJava is goDiesInTurn without other waiters in Go. Any later request from Go notifies
// Java of the death. Without one, Redisson tries again when the lease that it has seen has expired.
// Old versions try when they consider the earlier place expired.
func goDiesBeforeJava(t *testing.T, l *lab) {
	name := lockName(t)
	first := l.beforeDead(t, name, longLease)
	line := []entrant{l.queueThread(t, name)}
	first.release(backend.Freed)
	testservers.Until(t, "the lease is over of the one who has gone", func() bool {
		return l.left(t, name) == -2
	})
	first.wantTry(false)
	l.wantTurns(t, name, line)
}

// beforeDead returns the holder, with this lease, of a lock whose first waiter has died.
func (l *lab) beforeDead(t *testing.T, name string, lease time.Duration) (first *visitor) {
	t.Helper()
	first, dies := l.visitor(t, name), l.visitor(t, name)
	first.lease = lease
	first.wantTry(true)
	if ok, err := dies.try(longLease); ok || err != nil {
		t.Fatalf("Go: acquire: %v, %v", ok, err)
	}
	dies.session.Close()
	return first
}

// plainBesideFair is about the other kinds of the same lock. They exclude the fair one, and it
// excludes them.
func plainBesideFair(t *testing.T, l *lab) {
	name := lockName(t)
	client, ours, java := l.client(t), l.visitor(t, name), l.fairThread(t)
	for _, other := range kinds[:2] {
		theirs := l.java.thread(t)
		ours.wantTry(true)
		theirs.want("false", other.java+"tryLock", name)
		wantIs(t, "TryLock", false, tryLock(other.locker(client, name)))
		ours.release(backend.Freed)

		java.want("locked", "lock", name)
		wantIs(t, "TryLock", false, tryLock(other.locker(client, name)))
		java.want("unlocked", "unlock", name)

		theirs.want("locked", other.java+"lock", name)
		ours.wantTry(false)
		theirs.want("unlocked", other.java+"unlock", name)
	}
	for _, other := range kinds[2:] {
		theirs := l.java.thread(t)
		theirs.want("locked", other.java+"lock", name)
		if _, err := ours.try(0); !errors.Is(err, backend.ErrConflict) {
			t.Errorf("Go: a fair lock where Java holds a %s lock: %v, want ErrConflict", other.name,
				err)
		}
		l.wantHolds(t, name, other.held(theirs.owner, "1"))
		theirs.want("unlocked", other.java+"unlock", name)
	}
}

func lockersGiveUp(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.fairThread(t)
	java.want("locked", "lock", name)
	ctx, giveUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- client.FairLocker(name).LockContext(ctx) }()
	l.awaitPlace(t, name, client.ID())
	line := []entrant{l.queueThread(t, name), l.queueLocker(t, name)}
	giveUp()
	if err := receive(t, "Go gives up", gone); !errors.Is(err, context.Canceled) {
		t.Errorf("Go: lock: %v", err)
	}
	testservers.Until(t, "its place is free", func() bool {
		return len(l.inLine(t, name)) == len(line)
	})
	testservers.Until(t, "TryLock with a wait says that another has the lock", func() bool {
		ok, err := client.FairLocker(name).TryLock(t.Context(), dlock.Wait(100*time.Millisecond))
		return !ok && err == nil
	})
	testservers.Until(t, "its place is free", func() bool {
		return len(l.inLine(t, name)) == len(line)
	})
	java.want("unlocked", "unlock", name)
	l.wantTurns(t, name, line)
}

// TestFairBesideUndecided is about a cluster in which clients in Go use sharded channels, and a
// Redisson doesn't. Its threads must still be told when it is their turn.
func TestFairBesideUndecided(t *testing.T) {
	needVersions(t, []string{undecided})
	t.Parallel()
	p := clusterPlace(t)
	l := &lab{p, startPeer(t, undecided, p.config, longLease), fair}
	for range 5 { // in some runs a node may answer that the Redisson can use sharded channels
		lockersInLine(t, l)
	}
}

package redisson_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// readWriteCases are about both sides of a read-write lock. Cases about writers alone are among
// exclusiveCases.
var readWriteCases = []testCase{
	{"readers share", readersShare},
	{"Java's reader wakes Go's writer", javaReaderWakesGo},
	{"Go's reader wakes Java's writer", goReaderWakesJava},
	{"Java's writer wakes Go's readers", javaWriterWakesGo},
	{"Go's writer wakes Java's readers", goWriterWakesJava},
	{"Java reads twice", javaReadsTwice},
	{"Go reads twice", goReadsTwice},
	{"Java's reader dies beside Go's", javaReaderDies},
	{"Go's reader dies beside Java's", goReaderDies},
	{"leases of readers end", readLeasesEnd},
	{"Java forces readers", javaForcesReaders},
	{"Go forces readers", goForcesReaders},
	{"each side forces its own", forcesOwnSide},
	{"Java reads on after writing", javaDowngrades},
	{"Go reads on after writing", goDowngrades},
	{"Go's writer is let past", goWriterIsLetPast},
	{"Go's writer gives up", goWriterGivesUp},
	{"other kinds of lock", otherKinds},
	{"increments and comparisons", comparisons},
}

// wantWriter checks on both sides whether a writer could get the lock now.
func (l *lab) wantWriter(t *testing.T, name string, want bool) {
	t.Helper()
	java, ours := l.java.thread(t), writer(l.client(t), name)
	java.want(strconv.FormatBool(want), "write.tryLock", name)
	if want {
		java.want("unlocked", "write.unlock", name)
	}
	wantIs(t, "TryLock", want, tryLock(ours))
	if want {
		wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	}
}

func readersShare(t *testing.T, l *lab) {
	name := lockName(t)
	client, another := l.client(t), l.client(t)
	java, second := l.java.thread(t), l.java.thread(t)
	ours, others := reader(client, name), reader(another, name)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	java.want("true", "read.isLocked", name)
	java.want("false", "write.isLocked", name)
	java.want("false", "read.isHeldByCurrentThread", name)
	java.want("0", "read.getHoldCount", name)
	java.wantNearly(longLease, "read.remainTimeToLive", name)
	java.wantNotHeld("read.unlock", name)
	java.wantNotHeld("write.unlock", name)
	l.wantHolds(t, name, readHold(client.ID(), "1"))

	java.want("locked", "read.lock", name)
	second.want("true", "read.tryLock", name)
	wantIs(t, "TryLock", true, tryLock(others))
	wantIs(t, "HoldCount", 1, others.HoldCount)
	wantIs(t, "IsHeld", true, ours.IsHeld)
	wantIs(t, "IsLocked", false, writer(client, name).IsLocked)
	l.wantHolds(t, name, map[string]string{
		"mode": "read", client.ID(): "1", another.ID(): "1", java.owner: "1", second.owner: "1",
	})
	keys := []string{name}
	for _, owner := range []string{java.owner, second.owner, l.holder(t, name, client.ID()),
		l.holder(t, name, another.ID())} {
		keys = append(keys, readKey(name, owner, 1))
	}
	for _, key := range keys {
		l.wantLeft(t, key, longLease)
	}
	java.want("false", "write.tryLock", name) // a reader can't write either

	heard := l.listen(t, rwChannel(name))
	l.wantWriter(t, name, false)
	java.want("unlocked", "read.unlock", name)
	l.wantWriter(t, name, false)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	l.wantWriter(t, name, false)
	second.want("unlocked", "read.unlock", name)
	l.wantWriter(t, name, false)
	heard.want()
	wantNil(t, "unlock", others.UnlockContext(t.Context()))
	heard.want("0")
	l.wantGone(t, keys...)
	l.wantWriter(t, name, true)
}

func javaReaderWakesGo(t *testing.T, l *lab) {
	name := lockName(t)
	client, java, second := l.client(t), l.java.thread(t), l.java.thread(t)
	ours := writer(client, name)
	java.want("locked", "read.lock", name)
	second.want("locked", "read.lock", name)
	locked := lock(t, ours)
	l.awaitWaiter(t, name, client.ID())
	heard := l.listen(t, rwChannel(name))
	java.want("unlocked", "read.unlock", name)
	heard.want()
	second.want("unlocked", "read.unlock", name)
	heard.want("0")
	wantLock(t, locked)
	l.wantHolds(t, name, writeHold(client.ID(), "1"))
	second.want("false", "read.tryLock", name)
	second.want("false", "read.tryLock", name, 100*time.Millisecond)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
}

func goReaderWakesJava(t *testing.T, l *lab) {
	name := lockName(t)
	ours, others, java := reader(l.client(t), name), reader(l.client(t), name), l.java.thread(t)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	wantNil(t, "lock", others.LockContext(t.Context()))
	locked := java.start("write.lock", name)
	l.awaitThread(t, name, java)
	heard := l.listen(t, rwChannel(name))
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	heard.want()
	wantNil(t, "unlock", others.UnlockContext(t.Context()))
	heard.want("0")
	wantLocked(t, locked)
	l.wantHolds(t, name, writeHold(java.owner, "1"))
	wantIs(t, "TryLock", false, tryLock(ours))
	wantIs(t, "IsLocked", false, ours.IsLocked)
	java.want("unlocked", "write.unlock", name)
}

func javaWriterWakesGo(t *testing.T, l *lab) {
	name := lockName(t)
	client, another, java := l.client(t), l.client(t), l.java.thread(t)
	ours, others := reader(client, name), reader(another, name)
	java.want("locked", "write.lock", name)
	locked, second := lock(t, ours), lock(t, others)
	l.awaitWaiter(t, name, client.ID())
	l.awaitWaiter(t, name, another.ID())
	heard := l.listen(t, rwChannel(name))
	java.want("unlocked", "write.unlock", name)
	heard.want("1")
	wantLock(t, locked)
	wantLock(t, second)
	l.wantHolds(t, name, map[string]string{"mode": "read", client.ID(): "1", another.ID(): "1"})
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	wantNil(t, "unlock", others.UnlockContext(t.Context()))
}

func goWriterWakesJava(t *testing.T, l *lab) {
	name := lockName(t)
	ours, java, second := writer(l.client(t), name), l.java.thread(t), l.java.thread(t)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	java.want("false", "read.isLocked", name)
	java.want("true", "write.isLocked", name)
	locked, secondLocked := java.start("read.lock", name), second.start("read.lock", name)
	l.awaitThread(t, name, java)
	l.awaitThread(t, name, second)
	heard := l.listen(t, rwChannel(name))
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	heard.want("1")
	wantLocked(t, locked)
	wantLocked(t, secondLocked)
	l.wantHolds(t, name, map[string]string{"mode": "read", java.owner: "1", second.owner: "1"})
	java.want("unlocked", "read.unlock", name)
	second.want("unlocked", "read.unlock", name)
}

// javaReadsTwice is about a thread with two holds of different lengths, besides a longer one of
// Go's.
func javaReadsTwice(t *testing.T, l *lab) {
	const long, middle, short = 40 * time.Minute, 20 * time.Minute, 10 * time.Minute
	name := lockName(t)
	client, java := l.client(t), l.java.thread(t)
	ours := reader(client, name)
	java.want("locked", "read.lock", name, middle)
	wantNil(t, "lock", ours.LockContext(t.Context(), dlock.FixedLease(long)))
	java.want("locked", "read.lock", name, short)
	java.want("2", "read.getHoldCount", name)
	l.wantHolds(t, name, map[string]string{"mode": "read", java.owner: "2", client.ID(): "1"})
	first, second := readKey(name, java.owner, 1), readKey(name, java.owner, 2)
	own := readKey(name, l.holder(t, name, client.ID()), 1)
	l.wantLeft(t, first, middle)
	l.wantLeft(t, second, short)
	l.wantLeft(t, own, long)
	l.wantLeft(t, name, long)

	heard := l.listen(t, rwChannel(name))
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	l.wantHolds(t, name, readHold(java.owner, "2"))
	l.wantGone(t, own)
	l.wantLeft(t, name, middle)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	l.wantLeft(t, name, middle)

	java.want("unlocked", "read.unlock", name)
	java.want("1", "read.getHoldCount", name)
	l.wantHolds(t, name, map[string]string{"mode": "read", java.owner: "1", client.ID(): "1"})
	l.wantGone(t, second)
	java.want("unlocked", "read.unlock", name)
	l.wantHolds(t, name, readHold(client.ID(), "1"))
	l.wantLeft(t, name, longLease)
	heard.want()
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	heard.want("0")
	l.wantGone(t, name, first)
}

// goReadsTwice is about reads that the client in Go counts itself. In the store they are one hold.
func goReadsTwice(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.java.thread(t)
	ours := reader(client, name).For(dlock.NewOwner())
	for range 3 {
		wantNil(t, "lock", ours.LockContext(t.Context()))
	}
	wantIs(t, "HoldCount", 3, ours.HoldCount)
	owner := l.holder(t, name, client.ID())
	locked := java.start("write.lock", name)
	l.awaitThread(t, name, java)
	heard := l.listen(t, rwChannel(name))
	for _, left := range []int{2, 1} {
		wantNil(t, "unlock", ours.UnlockContext(t.Context()))
		wantIs(t, "HoldCount", left, ours.HoldCount)
		l.wantHolds(t, name, readHold(client.ID(), "1"))
	}
	l.wantGone(t, readKey(name, owner, 2))
	heard.want()
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	heard.want("0")
	wantLocked(t, locked)
	l.wantGone(t, readKey(name, owner, 1))
	java.want("unlocked", "write.unlock", name)
}

// dead is the lease of holders that die.
const dead = time.Second

func javaReaderDies(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.java.thread(t)
	ours := reader(l.client(t), name)
	wantNil(t, "lock", ours.LockContext(t.Context()))
	java.want("locked", "read.lock", name, dead)
	locked := lock(t, writer(client, name))
	l.awaitWaiter(t, name, client.ID())
	testservers.Until(t, "Java's lease is over", func() bool {
		return l.left(t, readKey(name, java.owner, 1)) == -2
	})
	l.wantLeft(t, name, longLease)
	heard := l.listen(t, rwChannel(name))
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	heard.want("0")
	wantLock(t, locked)
	l.wantHolds(t, name, writeHold(client.ID(), "1"))
	java.wantNotHeld("read.unlock", name)
}

func goReaderDies(t *testing.T, l *lab) {
	name := lockName(t)
	client, java, writes := l.client(t), l.java.thread(t), l.java.thread(t)
	ours := reader(client, name)
	java.want("locked", "read.lock", name)
	wantNil(t, "lock", ours.LockContext(t.Context(), dlock.FixedLease(dead)))
	locked := writes.start("write.lock", name)
	l.awaitThread(t, name, writes)
	key := readKey(name, l.holder(t, name, client.ID()), 1)
	testservers.Until(t, "Go's lease is over", func() bool { return l.left(t, key) == -2 })
	l.wantLeft(t, name, longLease)
	heard := l.listen(t, rwChannel(name))
	java.want("unlocked", "read.unlock", name)
	heard.want("0")
	wantLocked(t, locked)
	l.wantHolds(t, name, writeHold(writes.owner, "1"))
	if err := ours.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Go: unlock: %v, want ErrLost", err)
	}
	writes.want("unlocked", "write.unlock", name)
}

func readLeasesEnd(t *testing.T, l *lab) {
	name := lockName(t)
	ours, writes, java := reader(l.client(t), name), writer(l.client(t), name), l.java.thread(t)
	java.want("locked", "read.lock", name, dead)
	wantNil(t, "lock", writes.LockContext(t.Context()))
	java.wantNotHeld("read.unlock", name)
	wantIs(t, "IsHeld", true, writes.IsHeld)
	wantNil(t, "unlock", writes.UnlockContext(t.Context()))

	wantNil(t, "lock", ours.LockContext(t.Context(), dlock.FixedLease(dead)))
	wantLocked(t, java.start("write.lock", name))
	if err := ours.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("Go: unlock after the lease: %v, want ErrLost", err)
	}
	java.want("true", "write.isHeldByCurrentThread", name)
	java.want("unlocked", "write.unlock", name)
}

// javaForcesReaders is about readers in Go that share a hold, and learn of its loss when it is
// renewed.
func javaForcesReaders(t *testing.T, l *lab) {
	name := lockName(t)
	rw := l.client(t, dlock.WithLease(2*shortLease)).RWLocker(name)
	readers := []*dlock.Locker{rw.Reader().For(dlock.NewOwner()), rw.Reader().For(dlock.NewOwner())}
	for _, r := range readers {
		wantNil(t, "lock", r.LockContext(t.Context()))
	}
	java := l.java.thread(t)
	locked := java.start("write.lock", name)
	l.awaitThread(t, name, java)
	l.java.thread(t).want("true", "read.forceUnlock", name)
	wantLocked(t, locked)
	for _, r := range readers {
		receive(t, "Go is told that it doesn't read any more", closed(r.Lost(t.Context())))
		if err := r.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Go: unlock: %v, want ErrLost", err)
		}
	}
	l.wantHolds(t, name, writeHold(java.owner, "1"))
	java.want("unlocked", "write.unlock", name)
}

// closed returns a channel that receives a value when another one is closed.
func closed(c <-chan struct{}) <-chan struct{} {
	told := make(chan struct{}, 1)
	go func() {
		<-c
		told <- struct{}{}
	}()
	return told
}

func goForcesReaders(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.java.thread(t)
	java.want("locked", "read.lock", name)
	locked := lock(t, writer(client, name))
	l.awaitWaiter(t, name, client.ID())
	heard := l.listen(t, rwChannel(name))
	wantIs(t, "ForceUnlock", true, reader(l.client(t), name).ForceUnlock)
	heard.want("0")
	wantLock(t, locked)
	java.want("false", "read.isHeldByCurrentThread", name)
	java.wantNotHeld("read.unlock", name)
	l.wantHolds(t, name, writeHold(client.ID(), "1"))
}

// forcesOwnSide is about forcing the side that has no holders: the readers during a write, and the
// writer during a read.
func forcesOwnSide(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t), l.java.thread(t)
	rw := client.RWLocker(name)
	wantNil(t, "lock", rw.Reader().LockContext(t.Context()))
	java.want("false", "write.forceUnlock", name)
	l.wantHolds(t, name, readHold(client.ID(), "1"))
	wantNil(t, "unlock", rw.Reader().UnlockContext(t.Context()))
	wantNil(t, "lock", rw.Writer().LockContext(t.Context()))
	java.want("false", "read.forceUnlock", name)
	l.wantHolds(t, name, writeHold(client.ID(), "1"))
	wantNil(t, "unlock", rw.Writer().UnlockContext(t.Context()))

	java.want("locked", "read.lock", name)
	wantIs(t, "ForceUnlock", false, rw.Writer().ForceUnlock)
	java.want("unlocked", "read.unlock", name)
	java.want("locked", "write.lock", name)
	wantIs(t, "ForceUnlock", false, rw.Reader().ForceUnlock)
	java.want("unlocked", "write.unlock", name)
}

// javaDowngrades is about a writer that goes on reading. Redisson sends no message, so a waiter in
// Go finds out when it polls.
func javaDowngrades(t *testing.T, l *lab) {
	name := lockName(t)
	client, java := l.client(t, dlock.WithLease(2*shortLease)), l.java.thread(t)
	java.want("locked", "write.lock", name)
	java.want("locked", "read.lock", name)
	l.wantHolds(t, name, map[string]string{
		"mode": "write", java.owner + ":write": "1", java.owner: "1",
	})
	wantIs(t, "IsLocked", true, reader(client, name).IsLocked)
	wantIs(t, "IsLocked", true, writer(client, name).IsLocked)
	ours := reader(client, name)
	locked := lock(t, ours)
	l.awaitWaiter(t, name, client.ID())
	heard := l.listen(t, rwChannel(name))
	java.want("unlocked", "write.unlock", name)
	wantLock(t, locked)
	heard.want()
	l.wantHolds(t, name, map[string]string{"mode": "read", java.owner: "1", client.ID(): "1"})
	l.wantWriter(t, name, false)
	wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	java.want("unlocked", "read.unlock", name)
	l.wantWriter(t, name, true)
}

func goDowngrades(t *testing.T, l *lab) {
	name := lockName(t)
	client := l.client(t)
	rw, ctx := client.RWLocker(name), dlock.WithOwner(t.Context(), dlock.NewOwner())
	java, second, writes := l.java.thread(t), l.java.thread(t), l.java.thread(t)
	heard := l.listen(t, rwChannel(name))
	both := func() {
		t.Helper()
		wantNil(t, "write lock", rw.Writer().LockContext(ctx))
		wantNil(t, "read lock", rw.Reader().LockContext(ctx))
		l.wantHolds(t, name, map[string]string{
			"mode": "write", client.ID() + ":write": "1", client.ID(): "1",
		})
		java.want("true", "write.isLocked", name)
		java.want("false", "read.tryLock", name)
	}
	both()
	wantNil(t, "read unlock", rw.Reader().UnlockContext(ctx))
	java.want("true", "write.isLocked", name)
	java.want("false", "read.tryLock", name)
	heard.want()
	wantNil(t, "write unlock", rw.Writer().UnlockContext(ctx))
	heard.want("1")
	l.wantGone(t, name)
	both()

	locked, secondLocked := java.start("read.lock", name), second.start("read.lock", name)
	l.awaitThread(t, name, java)
	l.awaitThread(t, name, second)
	wantNil(t, "write unlock", rw.Writer().UnlockContext(ctx))
	heard.want("1")
	wantLocked(t, locked)
	wantLocked(t, secondLocked)
	l.wantHolds(t, name, map[string]string{
		"mode": "read", client.ID(): "1", java.owner: "1", second.owner: "1",
	})
	written := writes.start("write.lock", name)
	l.awaitThread(t, name, writes)
	java.want("unlocked", "read.unlock", name)
	second.want("unlocked", "read.unlock", name)
	heard.want()
	wantNil(t, "read unlock", rw.Reader().UnlockContext(ctx))
	heard.want("0")
	wantLocked(t, written)
	writes.want("unlocked", "write.unlock", name)
}

// goWriterIsLetPast is about a waiting writer in Go. Later readers in Go wait for it, and later
// readers in Java don't.
func goWriterIsLetPast(t *testing.T, l *lab) {
	name := lockName(t)
	first, second, java := l.client(t), l.client(t), l.java.thread(t)
	writes, reads := writer(first, name), reader(second, name)
	java.want("locked", "read.lock", name)
	written := lock(t, writes)
	l.awaitWaiter(t, name, first.ID())
	wantIs(t, "TryLock", false, tryLock(reads))
	late := l.java.thread(t)
	late.want("true", "read.tryLock", name)
	read := lock(t, reads)
	java.want("unlocked", "read.unlock", name)
	late.want("unlocked", "read.unlock", name)
	wantLock(t, written)
	l.wantHolds(t, name, writeHold(first.ID(), "1"))
	wantNil(t, "unlock", writes.UnlockContext(t.Context()))
	wantLock(t, read)
	l.wantHolds(t, name, readHold(second.ID(), "1"))
	wantNil(t, "unlock", reads.UnlockContext(t.Context()))
}

func goWriterGivesUp(t *testing.T, l *lab) {
	name := lockName(t)
	client, java, second := l.client(t), l.java.thread(t), l.java.thread(t)
	java.want("locked", "read.lock", name)
	ctx, giveUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- writer(client, name).LockContext(ctx) }()
	l.awaitWaiter(t, name, client.ID())
	locked := second.start("write.lock", name)
	l.awaitThread(t, name, second)
	heard := l.listen(t, rwChannel(name))
	giveUp()
	if err := receive(t, "Go gives up", gone); !errors.Is(err, context.Canceled) {
		t.Errorf("Go: lock: %v", err)
	}
	heard.next("1")
	wantIs(t, "TryLock", true, tryLock(reader(l.client(t), name)))
	l.java.thread(t).want("true", "read.forceUnlock", name)
	wantLocked(t, locked)
	second.want("unlocked", "write.unlock", name)
}

// otherKinds is about other kinds of lock under the name of a read-write lock.
func otherKinds(t *testing.T, l *lab) {
	name := lockName(t)
	client, another, java := l.client(t), l.client(t), l.java.thread(t)
	for _, held := range kinds[2:] {
		ours := held.locker(client, name)
		wantNil(t, "lock", ours.LockContext(t.Context()))
		for _, other := range kinds[:2] {
			java.want("false", other.java+"tryLock", name)
			java.wantNotHeld(other.java+"unlock", name)
		}
		l.wantHolds(t, name, held.held(client.ID(), "1"))
		wantNil(t, "unlock", ours.UnlockContext(t.Context()))
	}
	for _, held := range all {
		java.want("locked", held.java+"lock", name)
		for _, other := range all {
			if held.shares(other) {
				continue
			}
			for _, try := range []func(*dlock.Locker) error{
				func(ours *dlock.Locker) error {
					return receive(t, "Go has an answer", lock(t, ours))
				},
				func(ours *dlock.Locker) error { _, err := ours.TryLock(t.Context()); return err },
				func(ours *dlock.Locker) error {
					_, err := ours.ForceUnlock(t.Context())
					return err
				},
			} {
				if err := try(other.locker(another, name)); !errors.Is(err, dlock.ErrConflict) {
					t.Errorf("Go: a %s lock, where Java holds a %s lock: %v, want ErrConflict",
						other.name, held.name, err)
				}
			}
		}
		l.wantHolds(t, name, held.held(java.owner, "1"))
		java.want("unlocked", held.java+"unlock", name)
	}
}

// comparisons is a load of both sides. Writers increment a counter that loses simultaneous
// increments, and readers check that it doesn't change.
func comparisons(t *testing.T, l *lab) {
	const workers, each = 2, 20 // of writers and of readers, on each side
	name := lockName(t)
	var java []<-chan string
	for range workers {
		java = append(java, l.java.thread(t).start("write.increment", name, each))
		java = append(java, l.java.thread(t).start("read.compare", name, each))
	}
	var running sync.WaitGroup
	for range workers {
		rw := l.client(t).RWLocker(name)
		running.Go(func() { l.increment(t, rw.Writer(), each) })
		running.Go(func() { l.compare(t, rw.Reader(), each) })
	}
	running.Wait()
	defer l.nudge(t, rwChannel(name))()
	for _, done := range java {
		if got := receive(t, "Java is done", done); got != strconv.Itoa(each) {
			t.Errorf("Java: %s", got)
		}
	}
	if n, err := l.admin.Get(t.Context(), name+":counter").Int(); err != nil ||
		n != 2*workers*each {
		t.Errorf("counted %d, %v; want %d", n, err, 2*workers*each)
	}
}

// compare does what the Java program's method of that name does.
func (p *place) compare(t *testing.T, l *dlock.Locker, times int) {
	ctx := t.Context()
	inside, counter := l.Name()+":inside", l.Name()+":counter"
	for range times {
		l.Lock()
		before := p.admin.Get(ctx, counter).Val()
		if who, err := p.admin.Get(ctx, inside).Result(); !errors.Is(err, redis.Nil) {
			t.Errorf("Go: inside with %s, %v", who, err)
		}
		if after := p.admin.Get(ctx, counter).Val(); after != before {
			t.Errorf("Go: %s has become %s inside", before, after)
		}
		l.Unlock()
	}
}

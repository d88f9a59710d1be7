package redisson_test

import (
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// keepCases are about locks that a release in Go keeps. For Java such a lock has a holder.
var keepCases = []testCase{
	{"kept locks", keptLocks},
	{"kept permits", keptPermits},
	{"Java forces what is kept", javaForcesKept},
}

// keep acquires and releases a lock or a permit in Go, so that it is kept. It returns a time just
// before the release.
func (l *lab) keep(
	t *testing.T, kind backend.Kind, name string, keep time.Duration,
) (since time.Time) {
	t.Helper()
	s := l.backend(t).Open()
	t.Cleanup(func() { s.Close() })
	permits := 0
	if kind == backend.Permits {
		permits = 1
	}
	got, err := s.Acquire(t.Context(), backend.AcquireRequest{
		Kind: kind, Name: name, Owner: "ours:1", Lease: longLease, Permits: permits, Limit: permits,
	})
	if err != nil || !got.Acquired {
		t.Fatalf("Go: acquire: %+v, %v", got, err)
	}
	since = time.Now()
	res, err := s.Release(t.Context(), backend.ReleaseRequest{
		Kind: kind, Name: name, Owner: "ours:1", Lease: longLease, Permits: permits, Keep: keep,
	})
	if err != nil || res.Outcome != backend.Kept {
		t.Fatalf("Go: release with Keep: %v, %v", res.Outcome, err)
	}
	return since
}

func wantAfter(t *testing.T, since time.Time, keep time.Duration) {
	t.Helper()
	if passed := time.Since(since); passed < keep-keep/50-2*time.Millisecond {
		t.Errorf("Java got in after %v, and it was to be kept for %v", passed, keep)
	}
}

func keptLocks(t *testing.T, l *lab) {
	const keep = time.Second
	for _, k := range append(exclusive[:len(exclusive):len(exclusive)], fair) {
		l := &lab{l.place, l.java, k}
		name, java := lockName(t)+"/"+k.name, l.thread(t)
		l.keep(t, k.ours, name+"/long", longLease)
		java.want("false", "tryLock", name+"/long")
		java.want("true", "isLocked", name+"/long")
		java.want("false", "isHeldByCurrentThread", name+"/long")
		java.wantNearly(longLease, "remainTimeToLive", name+"/long")
		java.wantNotHeld("unlock", name+"/long")

		since := l.keep(t, k.ours, name, keep)
		locked := java.start("lock", name)
		if k.ours == backend.Fair && l.java.version != versions[0] {
			defer l.nudge(t, ownChannel(name, java.owner))() // as in leasesEnd
		}
		wantLocked(t, locked)
		wantAfter(t, since, keep)
		l.wantHolds(t, name, l.held(java.owner, "1"))
		java.want("unlocked", "unlock", name)
	}
}

func keptPermits(t *testing.T, l *lab) {
	const keep = time.Second
	name, java := lockName(t), l.permitsThread(t)
	since := l.keep(t, backend.Permits, name, keep)
	java.give(name, wantIDs(t, 1, java.start("acquire", name, 1))...)
	wantAfter(t, since, keep)
	l.wantPermits(t, name, 1, 0)
}

func javaForcesKept(t *testing.T, l *lab) {
	name, java := lockName(t), l.java.thread(t)
	l.keep(t, backend.Exclusive, name, longLease)
	java.want("true", "forceUnlock", name)
	java.want("true", "tryLock", name)
	java.want("unlocked", "unlock", name)
}

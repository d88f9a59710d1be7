package redisson_test

import (
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// latchCases are about Redisson's RCountDownLatch. Both sides count and wait.
var latchCases = []testCase{
	{"counts of a latch", countsOfLatch},
	{"waits for a latch", waitsForLatch},
	{"Java opens and Go is told", javaTellsOfLatch},
}

// latches returns the latch of a test, for Go and for Java.
func latches(t *testing.T, l *lab) (name string, ours *dlock.Latch, java *thread) {
	t.Helper()
	name, java = lockName(t), l.java.thread(t)
	java.kind = "latch."
	return name, l.client(t).Latch(name), java
}

func wantCount(t *testing.T, ours *dlock.Latch, java *thread, want int64, text string) {
	t.Helper()
	n, err := ours.Count(t.Context())
	if wantNil(t, "count", err); n != want {
		t.Errorf("Go: a count of %d; want %d", n, want)
	}
	java.want(text, "getCount", ours.Name())
}

func countsOfLatch(t *testing.T, l *lab) {
	name, ours, java := latches(t, l)
	wantNil(t, "wait", ours.Wait(t.Context()))
	for range 2 {
		java.want("true", "trySetCount", name, 3)
		set, err := ours.Set(t.Context(), 5)
		if wantNil(t, "set", err); set {
			t.Error("Go: set what Java has set")
		}
		wantNil(t, "count down", ours.CountDown(t.Context()))
		wantCount(t, ours, java, 2, "2")
		java.want("counted", "countDown", name)
		wantNil(t, "count down", ours.CountDown(t.Context()))
		wantCount(t, ours, java, 0, "0")
		wantNil(t, "count down", ours.CountDown(t.Context()))
		wantCount(t, ours, java, 0, "0")

		set, err = ours.Set(t.Context(), 1)
		if wantNil(t, "set", err); !set {
			t.Error("Go: can't set what is open")
		}
		java.want("false", "trySetCount", name, 3)
		java.want("counted", "countDown", name)
		wantCount(t, ours, java, 0, "0")
	}
}

func waitsForLatch(t *testing.T, l *lab) {
	name, ours, java := latches(t, l)
	_, _, other := latches(t, l)
	for round := range 4 {
		java.want("true", "trySetCount", name, 1)
		waits := make(chan error, 1)
		go func() { waits <- ours.Wait(t.Context()) }()
		theirs := java.start("await", name)
		if round%2 == 0 {
			wantNil(t, "count down", ours.CountDown(t.Context()))
		} else {
			other.want("counted", "countDown", name)
		}
		if got := receive(t, "Java goes on", theirs); got != "open" {
			t.Errorf("Java: await: %s", got)
		}
		wantNil(t, "wait", receive(t, "Go goes on", waits))
	}
}

// javaTellsOfLatch checks that Go is notified, and doesn't have to poll.
func javaTellsOfLatch(t *testing.T, l *lab) {
	name, _, java := latches(t, l)
	session := l.backend(t).Open()
	defer session.Close()
	for opens, answer := range map[string]string{"countDown": "counted", "delete": "true"} {
		java.want("true", "trySetCount", name, 1)
		woken := make(chan struct{}, 9)
		sub, err := session.(backend.Notifier).Subscribe(t.Context(), backend.SubscribeRequest{
			Kind: backend.Latch, Name: name, Watches: true,
			Wake: func(backend.Wakeup) { woken <- struct{}{} },
		})
		wantNil(t, "subscribe", err)
		java.want(answer, opens, name)
		receive(t, "a word of "+opens, woken)
		sub.Close()
	}
}

package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// A timeline prints the workers' actions, with their times.
type timeline struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
	crash time.Time // of a crash, until the next acquisition
}

func newTimeline(out io.Writer) *timeline { return &timeline{out: out, start: time.Now()} }

func (t *timeline) title(title string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "\n%s\n", title)
}

func (t *timeline) say(who, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.write(who, fmt.Sprintf(format, args...))
}

// entered prints that a worker got the lock.
func (t *timeline) entered(who string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.crash.IsZero() {
		t.write(who, "has the lock")
		return
	}
	after := time.Since(t.crash).Seconds()
	t.write(who, fmt.Sprintf("has the lock: the lease ran out, got in %.2fs after the crash",
		after))
	t.crash = time.Time{}
}

// crashed writes that a worker crashed.
func (t *timeline) crashed(who, how string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.crash = time.Now()
	t.write(who, "crashed while holding: "+how)
}

// write prints a line. The caller must hold t.mu.
func (t *timeline) write(who, what string) {
	fmt.Fprintf(t.out, "%5.2fs  %-4s  %s\n", time.Since(t.start).Seconds(), who, what)
}

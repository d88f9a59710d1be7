package contract

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A pulse detects pauses and overload of the machine. Its goroutine wakes up at regular intervals,
// and records how late it was and how many threads were runnable.
type pulse struct {
	mu    sync.Mutex
	due   time.Time     // when the next beat is due
	worst time.Duration // the longest delay of a beat
	crowd int           // largest number of runnable threads per processor
	stop  chan struct{}
	ended chan struct{}
}

const (
	beat = 10 * time.Millisecond

	// stoodStill is the shortest delay of a beat that excuses a failure. The cases themselves
	// tolerate longer delays of this process. But if it was delayed by this much, the store's
	// processes may have been delayed by ten times as much.
	stoodStill = 20 * time.Millisecond

	// crowded is the smallest number of runnable threads per processor that excuses a failure.
	// Under such a load a store may not answer in time. The delay of the beats doesn't reveal the
	// load, because the system favors processes that sleep most of the time, as this one does.
	crowded = 5
)

// crowd returns the number of runnable threads per processor, or 0 if the number isn't known.
func crowd() int {
	loadavg, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	return running(string(loadavg)) / runtime.NumCPU()
}

// running returns the number of runnable threads, as given in Linux's /proc/loadavg. In "11.90
// 14.36 14.54 16/193 2924" the result is 16, out of 193 threads.
func running(loadavg string) int {
	fields := strings.Fields(loadavg)
	if len(fields) < 4 {
		return 0
	}
	text, _, _ := strings.Cut(fields[3], "/")
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}

func startPulse() *pulse {
	p := &pulse{due: time.Now().Add(beat), stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		for {
			select {
			case <-p.stop:
				return
			case <-time.After(beat):
			}
			wanted := crowd()
			p.mu.Lock()
			p.crowd = max(p.crowd, wanted)
			p.worst = max(p.worst, time.Since(p.due))
			p.due = time.Now().Add(beat)
			p.mu.Unlock()
		}
	}()
	return p
}

// end stops the pulse.
func (p *pulse) end() {
	close(p.stop)
	<-p.ended
}

// latest returns the longest delay and the highest load so far.
func (p *pulse) latest() (late time.Duration, crowd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.worst, time.Since(p.due)), p.crowd
}

// mostRuns limits how often a case is run when a slow machine excuses its failures.
const mostRuns = 3

// runIn runs a case as a subtest, if the harness chooses it. In real time, leases may expire while
// the machine runs something else. So if the machine stood still or was overloaded, failures are
// only printed, and the case runs again. Failures of the last run always count.
func (c testCase) runIn(t *testing.T, h Harness) {
	if !h.chooses(c) {
		return
	}
	runs := mostRuns
	if h.Virtual || c.tags.Has(Exclusion) {
		runs = 1
	}
	for ; runs > 1; runs-- {
		var excused atomic.Bool
		t.Run(c.name, func(t *testing.T) { runCase(t, h, c, &excused) })
		if !excused.Load() {
			return
		}
	}
	t.Run(c.name, func(t *testing.T) { runCase(t, h, c, nil) })
}

// late reports whether a slow machine excuses a failure. If so, it sets e.excused.
func (e *env) late() bool {
	e.Helper()
	if e.excused == nil {
		return false
	}
	late, crowd := e.pulse.latest()
	if late < stoodStill && crowd < crowded {
		return false
	}
	e.Logf("the machine has stood still for %v, and %d wanted each processor: once more, as it "+
		"may be that which was wrong", late, crowd)
	e.excused.Store(true)
	return true
}

// Errorf, Error, Fatalf and Fatal are like the methods of testing.T. But if a failure is excused,
// Errorf and Error only log it, and Fatalf and Fatal skip the rest of the case.

func (e *env) Errorf(format string, args ...any) {
	e.Helper()
	if e.late() {
		e.Logf(format, args...)
		return
	}
	e.T.Errorf(format, args...)
}

func (e *env) Error(args ...any) {
	e.Helper()
	if e.late() {
		e.Log(args...)
		return
	}
	e.T.Error(args...)
}

func (e *env) Fatalf(format string, args ...any) {
	e.Helper()
	if e.late() {
		e.Skipf(format, args...)
	}
	e.T.Fatalf(format, args...)
}

func (e *env) Fatal(args ...any) {
	e.Helper()
	if e.late() {
		e.Skip(args...)
	}
	e.T.Fatal(args...)
}

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

// A pulse tells whether the machine stands still at times: a goroutine that wakes up again and again
// notes how late it was, and how many others want to run.
type pulse struct {
	mu    sync.Mutex
	due   time.Time     // the next beat
	worst time.Duration // how late one was
	crowd int           // the most that wanted a processor, for each processor
	stop  chan struct{}
	ended chan struct{}
}

const (
	beat = 10 * time.Millisecond

	// stoodStill is how late a beat is of a machine that can't be expected to do anything in time. Cases allow for more, but the processes of
	// a store may have waited for ten times as long as this one did.
	stoodStill = 20 * time.Millisecond

	// crowded is how many want each processor of a machine on which a store can't be expected to
	// answer in time. A process that sleeps most of the time, as this one, is let in before others, and
	// is in time all the while.
	crowded = 5
)

// crowd returns how many want each processor at the moment, or 0 where the system doesn't say.
func crowd() int {
	loadavg, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	return running(string(loadavg)) / runtime.NumCPU()
}

// running returns how many want a processor, as Linux says it: "11.90 14.36 14.54 16/193 2924" are 16
// of 193 threads.
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

// latest returns how late the machine was at its worst, and how crowded.
func (p *pulse) latest() (late time.Duration, crowd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.worst, time.Since(p.due)), p.crowd
}

// mostRuns is how often a case is run before a machine that stands still is no excuse any more.
const mostRuns = 3

// runIn runs a case as a subtest, if the harness chooses it. In real time leases end while a machine
// does something else, so what goes wrong while it stood still is only printed, and the case run again.
// Where nothing hangs on the time, what is found has happened.
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

// late says whether the machine is an excuse for what has gone wrong, and notes that it was one.
func (e *env) late() bool {
	e.Helper()
	if e.excused == nil {
		return false
	}
	late, crowd := e.pulse.latest()
	if late < stoodStill && crowd < crowded {
		return false
	}
	e.Logf("the machine has stood still for %v, and %d wanted each processor: once more, as it may be "+
		"that which was wrong", late, crowd)
	e.excused.Store(true)
	return true
}

// Errorf, Error, Fatalf and Fatal are as those of a test, but for what is excused.

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

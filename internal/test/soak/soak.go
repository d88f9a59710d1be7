package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// names lists the names of the locks. Users force-unlock only the first one.
var names = append([]string{"forced", "a", "b", numbered, "rw", "wr", "line", semaphore, elected},
	divided...)

const (
	forced    = 0
	numbered  = "numbered"
	semaphore = "semaphore"
	elected   = "elected" // the lock of an election
	permits   = 5         // the limit that most users pass
)

// kindsOf returns the kinds of lock that a name is used for, most frequent first.
func kindsOf(name string) []backend.Kind {
	switch name {
	case numbered:
		return []backend.Kind{backend.Fenced, backend.Exclusive}
	case elected, divided[0], divided[1]:
		return []backend.Kind{backend.Fenced}
	case "rw":
		return []backend.Kind{backend.Read, backend.Write}
	case "wr":
		return []backend.Kind{backend.Write, backend.Read}
	case "line":
		return []backend.Kind{backend.Fair}
	case semaphore:
		return []backend.Kind{backend.Permits}
	default:
		return []backend.Kind{backend.Exclusive}
	}
}

// A soak is the state of one run of the program.
type soak struct {
	t        testservers.TB
	store    *store
	seed     uint64
	length   time.Duration
	episode  time.Duration
	patience int       // number of polls without progress after which await gives up
	log      io.Writer // for messages about the run

	checker  *checker
	mischief mischief
	members  []member
	links    []link
	numbers  atomic.Uint64 // the last number of a party
	unmap    func()

	began time.Time
	heap  uint64 // at the start of the run
	spoke time.Time

	mu     sync.Mutex // guards log and the fields below
	leaked int
	stuck  int
	left   int // processes with goroutines left
}

// A member is a party, in this process or in a child process.
type member interface {
	start(seed uint64)
	drain()
	inside() int
	close()
}

// between is the time between two polls.
const between = 100 * time.Millisecond

// run runs the soak, and returns its summary.
func (s *soak) run(ctx context.Context) summary {
	s.began, s.spoke = time.Now(), time.Now()
	s.say("%s for %v", s.store.name, s.length)
	s.mischief.counts = make(map[string]int)
	s.checker = newChecker(names[forced], 3*s.store.lease+longestHandover, func(text string) {
		s.say("%s", text)
	})
	s.gather()
	s.heap = heap()
	end := s.began.Add(s.length)
	for n := uint64(0); ctx.Err() == nil && time.Now().Before(end) && s.stuck == 0; n++ {
		s.play(ctx, s.seed+n, min(s.episode, time.Until(end)))
		s.settle()
	}
	s.disperse()
	s.expectNothingLeft()
	s.unmap()
	return s.summary()
}

// longestHandover is the longest hand-over time that a client is configured with.
const longestHandover = 50 * time.Millisecond

// gather creates the parties.
func (s *soak) gather() {
	path := filepath.Join(s.t.TempDir(), "cells")
	c, unmap, err := mapCells(path, len(names))
	if err != nil {
		s.t.Fatal(err)
	}
	s.unmap = unmap
	for i, handover := range []time.Duration{dlock.DefaultHandover, 0, longestHandover} {
		set, d := s.invite(path, handover)
		set.Number, set.Reopens = s.numbers.Add(1), i > 0
		s.members = append(s.members, newParty(set, d, c, s.checker.note))
	}
	for i := range s.store.processes {
		set, _ := s.invite(path, []time.Duration{longestHandover, dlock.DefaultHandover}[i%2])
		p := &process{
			setting: set, number: func() uint64 { return s.numbers.Add(1) }, tell: s.checker.note,
			leaked: s.leftBehind,
		}
		if err := p.launch(); err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(p.kill)
		s.members = append(s.members, p)
	}
}

// invite returns the setting and the dialer for a new party.
func (s *soak) invite(cells string, handover time.Duration) (setting, dialer) {
	links, addrs, d := s.store.join()
	s.links = append(s.links, links...)
	users := 5
	if len(s.members)%2 == 1 {
		users = 1 // with more users, the client could learn of a loss from another user's call
	}
	return setting{
		Store:    s.store.name,
		Addrs:    addrs,
		Cells:    cells,
		Names:    s.store.locks(),
		Forced:   names[forced],
		Lease:    s.store.lease + time.Duration(len(s.members)%3)*s.store.lease/4,
		Handover: handover,
		Users:    users,
	}, d
}

// play runs one episode, in which users use locks while faults are injected.
func (s *soak) play(ctx context.Context, seed uint64, length time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	streams := uint64(0)
	dice := func() *chance {
		streams++
		return &chance{rand.New(rand.NewPCG(seed, streams))}
	}
	for _, m := range s.members {
		m.start(seed)
	}
	lease := s.store.lease
	pause := lease << dice().IntN(4) // so that episodes differ in their number of faults
	for _, l := range s.links {
		s.mischief.start(ctx, dice(), pause, linkFaults(l, lease))
	}
	s.mischief.start(ctx, dice(), 2*pause, s.store.server(s.checker))
	for _, m := range s.members {
		if p, ok := m.(*process); ok {
			s.mischief.start(ctx, dice(), 2*pause, p.faults(s.t.Fatal))
		}
	}
	for ctx.Err() == nil {
		wait(ctx, between)
		s.progress()
	}
	s.mischief.running.Wait()
}

// settle ends an episode once there are no more faults. All waiters must now get their locks, and
// in the end all locks must be free.
func (s *soak) settle() {
	for _, m := range s.members {
		m.drain()
	}
	if n := s.await(s.inside); n > 0 {
		s.stuck = n
		s.say("%d users never finished", n)
		s.explain()
		return
	}
	s.expectNothingLeft()
}

// expectNothingLeft reports keys that are left in the store although all locks are free.
func (s *soak) expectNothingLeft() {
	failures := 0
	n := s.await(func() int {
		n, err := s.store.left()
		if err == nil {
			return n
		}
		if failures++; failures > s.patience {
			s.t.Fatal(err)
		}
		return 1
	})
	if n > 0 {
		s.leaked = max(s.leaked, n)
		s.say("%d keys are left that nobody holds", n)
	}
}

func (s *soak) inside() (n int) {
	for _, m := range s.members {
		n += m.inside()
	}
	return n
}

// await polls a function until the result is 0, and returns the last result. It gives up after too
// many polls without progress. It counts polls, not seconds, because a machine that stalls delays
// users and polls alike.
func (s *soak) await(left func() int) int {
	events := s.checker.counted().events
	for looks := 0; ; looks++ {
		n := left()
		if n == 0 || looks > s.patience {
			return n
		}
		if now := s.checker.counted().events; now != events {
			events, looks = now, 0
		}
		time.Sleep(between)
		s.progress()
	}
}

// explain prints the goroutines of all processes.
func (s *soak) explain() {
	var where strings.Builder
	pprof.Lookup("goroutine").WriteTo(&where, 1)
	s.say("%s", where.String())
	for _, m := range s.members {
		if p, ok := m.(*process); ok && p.inside() > 0 {
			p.explain()
		}
	}
}

// disperse closes all parties.
func (s *soak) disperse() {
	for _, m := range s.members {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			m.close()
		}()
		if s.await(func() int { return open(closed) }) > 0 {
			s.stuck++
			s.say("a client could not be closed")
			s.explain()
		}
	}
}

// open returns 1 if the channel is open, and 0 if it is closed.
func open(c <-chan struct{}) int {
	select {
	case <-c:
		return 0
	default:
		return 1
	}
}

func (s *soak) leftBehind(what string) {
	s.say("goroutines are left: %s", what)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left++
}

func (s *soak) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.log, "[seed %d, %v] %s\n", s.seed, time.Since(s.began).Round(time.Millisecond),
		fmt.Sprintf(format, args...))
}

// progress prints the counters every ten seconds.
func (s *soak) progress() {
	if time.Since(s.spoke) < 10*time.Second {
		return
	}
	s.spoke = time.Now()
	c := s.checker.counted()
	s.say("%d acquisitions, %d increments, %d lost, %d violations, %d faults, heap %d KiB, %d "+
		"goroutines",
		c.Acquisitions, c.Increments, c.Lost, c.Violations, s.mischief.total(), heap()>>10,
		runtime.NumGoroutine())
}

// heap returns the number of heap bytes in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

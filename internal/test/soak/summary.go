package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// A summary holds the results of a run.
type summary struct {
	Backend string  `json:"backend"`
	Seed    uint64  `json:"seed"`
	Seconds float64 `json:"seconds"`
	counts
	Faults map[string]int `json:"faults"`
	Leaked int            `json:"leaked"` // keys left although all locks were free
	// users that never finished, and clients that couldn't be closed
	Stuck      int    `json:"stuck"`
	Goroutines int    `json:"goroutines"` // processes with goroutines left
	HeapStart  uint64 `json:"heap_start"` // of this process, in bytes
	HeapEnd    uint64 `json:"heap_end"`
}

// good reports whether the run found no violation.
func (s summary) good() bool {
	return s.Violations+s.Leaked+s.Stuck+s.Goroutines == 0 && s.Acquisitions > 0
}

func (s *soak) summary() summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	return summary{
		Backend:    s.store.name,
		Seed:       s.seed,
		Seconds:    time.Since(s.began).Seconds(),
		counts:     s.checker.counted(),
		Faults:     s.mischief.counts,
		Leaked:     s.leaked,
		Stuck:      s.stuck,
		Goroutines: s.left,
		HeapStart:  s.heap,
		HeapEnd:    heap(),
	}
}

// total returns the number of faults injected so far.
func (m *mischief) total() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, count := range m.counts {
		n += count
	}
	return n
}

// print writes the summary for people.
func (s summary) print(w io.Writer) {
	fmt.Fprintf(w, "%s, seed %d, %.0f s\n", s.Backend, s.Seed, s.Seconds)
	row := func(what string, n any) { fmt.Fprintf(w, "  %-36s %8v\n", what, n) }
	row("acquisitions", s.Acquisitions)
	row("increments", s.Increments)
	row("holds lost, as their users were told", s.Lost)
	for _, name := range slices.Sorted(maps.Keys(s.Faults)) {
		row("fault: "+name, s.Faults[name])
	}
	row("violations", s.Violations)
	row("leaked holds", s.Leaked)
	row("stuck waiters", s.Stuck)
	row("processes with goroutines left", s.Goroutines)
	row("heap at the begin, KiB", s.HeapStart>>10)
	row("heap at the end, KiB", s.HeapEnd>>10)
}

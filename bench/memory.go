package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/seed951563bd/distsync/dlock"
)

var memoryContenders = []contender{
	{name: "sync.Mutex", store: onMemory, in: []string{"W7"}, role: floor, open: openMutexes},
	{name: "channel", store: onMemory, in: []string{"W14"}, role: floor, open: openChannels},
	{name: "x/sync/semaphore", store: onMemory, in: []string{"W14"}, open: openSemaphores},
	{name: "dlock", store: onMemory, in: []string{"W7", "W14"}, role: ours, open: withMemory()},
	{name: "dlock, no hand-over", store: onMemory, in: []string{"W7"}, role: ours,
		open: withMemory(dlock.WithHandover(0))},
}

// mutexes is a system whose locks are sync.Mutexes, kept by name.
type mutexes struct {
	mu     sync.Mutex
	byName map[string]*sync.Mutex
}

func openMutexes(place) (system, error) {
	return &mutexes{byName: make(map[string]*sync.Mutex)}, nil
}

func (s *mutexes) locker(name string, _ int) (locker, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[name] == nil {
		s.byName[name] = new(sync.Mutex)
	}
	return mutexLocker{s.byName[name]}, nil
}

func (s *mutexes) close() {}

type mutexLocker struct{ *sync.Mutex }

func (l mutexLocker) Lock(context.Context) error { l.Mutex.Lock(); return nil }
func (l mutexLocker) Unlock() error              { l.Mutex.Unlock(); return nil }

// channels is a semaphore: each element in the channel is an acquired permit.
type channels chan struct{}

func openChannels(place) (system, error) { return make(channels, mostInside), nil }

func (s channels) locker(string, int) (locker, error) { return s, nil }
func (s channels) close()                             {}
func (s channels) Lock(context.Context) error         { s <- struct{}{}; return nil }
func (s channels) Unlock() error                      { <-s; return nil }

// semaphores is the semaphore of golang.org/x/sync.
type semaphores struct{ *semaphore.Weighted }

func openSemaphores(place) (system, error) {
	return semaphores{semaphore.NewWeighted(mostInside)}, nil
}

func (s semaphores) locker(string, int) (locker, error) { return s, nil }
func (s semaphores) close()                             {}
func (s semaphores) Lock(ctx context.Context) error     { return s.Acquire(ctx, 1) }
func (s semaphores) Unlock() error                      { s.Release(1); return nil }

var workload7 = workload{
	id: "W7", title: "In memory: lock and unlock, one key, beside a sync.Mutex",
	about: "Not pinned. 1 goroutine is uncontended.",
	metrics: []metric{
		{"ns", "ns/op", 0}, {"ratio", "× floor", 1}, {"allocs", "allocs/op", 1},
		{"bytes", "B/op", 0},
	},
	stores:  []store{onMemory},
	ratioOf: "ns",
	points: []point{
		{label: "1 goroutine", x: 1, quick: true, trial: trial{Goroutines: 1}},
		{label: "2 goroutines", x: 2, trial: trial{Goroutines: 2}},
		{label: "8 goroutines", x: 8, quick: true, trial: trial{Goroutines: 8}},
		{label: "64 goroutines", x: 64, trial: trial{Goroutines: 64}},
	},
	common: trial{Job: jobMemory, Unpinned: true, Duration: time.Second, Lease: 30 * time.Second},
	run:    runOne,
}

// runOne runs the trial in one process, and returns the values that the process reports.
func runOne(l *lab, _ contender, p point) (values, error) {
	reps, err := l.perform([]trial{p.trial}, func(f func() error) error { return f() })
	if err != nil {
		return nil, err
	}
	return reps[0].Values, nil
}

// inMemory measures locking and unlocking. It reads the clock only at the beginning and the end,
// not for each lock.
func inMemory(c *child) (measured, error) {
	sys, err := c.open()
	if err != nil {
		return measured{}, err
	}
	defer sys.close()
	lockers := make([]locker, c.Goroutines)
	for i := range lockers {
		if lockers[i], err = sys.locker(c.Name, i); err != nil {
			return measured{}, err
		}
	}
	if err := c.ready(); err != nil {
		return measured{}, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	n, err := lockAll(lockers, c.Duration)
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	if n == 0 {
		return measured{}, fmt.Errorf("nobody got the lock: %w", err)
	}
	return measured{Values: values{
		"ns":     float64(took) / float64(n),
		"allocs": float64(after.Mallocs-before.Mallocs) / float64(n),
		"bytes":  float64(after.TotalAlloc-before.TotalAlloc) / float64(n),
	}}, err
}

// lockAll locks and unlocks all lockers, each in its own goroutine, until d has elapsed. It returns
// how many times a lock was acquired.
func lockAll(lockers []locker, d time.Duration) (n int, err error) {
	var over atomic.Bool
	timer := time.AfterFunc(d, func() { over.Store(true) })
	defer timer.Stop()
	errs, counts := make([]error, len(lockers)), make([]int, len(lockers))
	var all sync.WaitGroup
	for i, l := range lockers {
		all.Go(func() {
			ctx := context.Background()
			mine := 0
			for !over.Load() && errs[i] == nil {
				if errs[i] = l.Lock(ctx); errs[i] == nil {
					mine++
					errs[i] = l.Unlock()
				}
			}
			counts[i] = mine
		})
	}
	all.Wait()
	for _, count := range counts {
		n += count
	}
	return n, errors.Join(errs...)
}

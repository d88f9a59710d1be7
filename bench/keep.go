package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"time"
)

var workload5 = workload{
	id: "W5", title: "Locks held, each renewed, with a lease of 3 s",
	about: "Beyond what the process needs when it is connected and has had some locks. CPU in " +
		"percent of one. redsync and redislock don't renew.",
	metrics: []metric{
		{"goroutines", "goroutines", 0}, {"heap", "heap B/lock", 0}, {"stack", "stack B/lock", 0},
		{"client", "client CPU %", 2}, {"server", "server CPU %", 2}, {"commands", "commands/s", 0},
		{"lost", "lost", 0},
	},
	stores:  []store{onRedis, onValkey, onEtcd, onPostgres},
	common:  trial{Job: jobKeep, Duration: 6 * time.Second, Lease: 3 * time.Second},
	atLeast: 3 * time.Second,
	points: []point{
		{label: "100 locks", x: 100, trial: trial{Count: 100}},
		{label: "1,000 locks", x: 1000, quick: true, trial: trial{Count: 1000}},
		{label: "10,000 locks", x: 10_000, trial: trial{Count: 10_000}},
	},
	run: runOne,
	chart: chart{
		name: "held", title: "Locks are held, with a lease of 3 s: the server's CPU in percent",
		metric: "server", x: "locks", series: []string{
			"Redis/dlock", "etcd/dlock", "PostgreSQL/dlock", "Valkey/valkeylock",
			"etcd/concurrency",
		},
	},
}

// A footprint records the resources that a process uses at one moment.
type footprint struct {
	goroutines  int
	heap, stack uint64
	sockets     int
}

func takeFootprint() footprint {
	runtime.GC()
	runtime.GC() // also frees what finalizers and pools released in the first GC
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{runtime.NumGoroutine(), m.HeapAlloc, m.StackInuse, sockets()}
}

// keep holds many locks, and measures the cost in the client and the server.
func keep(c *child) (measured, error) {
	sys, err := c.open()
	if err != nil {
		return measured{}, err
	}
	defer sys.close()
	if err := warmUp(sys, c.Name); err != nil {
		return measured{}, err
	}
	names := lockNames(c.Name, c.Count)
	lockers := make([]locker, len(names))
	before := takeFootprint()
	if err := lockEach(sys, names, lockers); err != nil {
		return measured{}, err
	}
	if err := c.ready(); err != nil {
		return measured{}, err
	}
	held := takeFootprint()
	client, server, commands, err := c.usageDuring(c.Duration)
	if err != nil {
		return measured{}, err
	}
	lost := unlockEach(lockers)
	n := float64(c.Count)
	return measured{Values: values{
		"goroutines": float64(held.goroutines - before.goroutines),
		"heap":       (float64(held.heap) - float64(before.heap)) / n,
		"stack":      (float64(held.stack) - float64(before.stack)) / n,
		"client":     100 * client, "server": 100 * server, "commands": commands,
		"lost": float64(lost),
	}}, nil
}

func lockNames(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = prefix + ":" + strconv.Itoa(i)
	}
	return names
}

// warmUp makes the client open its connections.
func warmUp(sys system, name string) error {
	names := lockNames("warm:"+name, 10*atOnce)
	lockers := make([]locker, len(names))
	if err := lockEach(sys, names, lockers); err != nil {
		return err
	}
	if lost := unlockEach(lockers); lost > 0 {
		return fmt.Errorf("%d locks were lost", lost)
	}
	return nil
}

// atOnce is the number of locks that are acquired concurrently. Acquiring them one after another
// would take longer than a lease.
const atOnce = 16

// lockEach acquires all locks.
func lockEach(sys system, names []string, lockers []locker) error {
	errs := make([]error, atOnce)
	var all sync.WaitGroup
	for first := range atOnce {
		all.Go(func() {
			for i := first; i < len(names) && errs[first] == nil; i += atOnce {
				lockers[i], errs[first] = sys.locker(names[i], 0)
				if errs[first] == nil {
					errs[first] = lockers[i].Lock(context.Background())
				}
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// unlockEach releases all locks, and returns how many were lost.
func unlockEach(lockers []locker) (lost int) {
	for _, l := range lockers {
		if l.Unlock() != nil {
			lost++
		}
	}
	return lost
}

var workload6 = workload{
	id: "W6", title: "Waiters on locks that are held, with a lease of 3 s",
	about: "Beyond what the waiting goroutines need themselves, and what the first waiter of a " +
		"client needs. “sockets” are beyond those of a client that has had some locks. " +
		"What commands the holder, another process, sends is left out: its lease is an hour.",
	metrics: []metric{
		{"goroutines", "goroutines", 0}, {"heap", "heap B/waiter", 0},
		{"stack", "stack B/waiter", 0},
		{"sockets", "sockets", 0}, {"commands", "commands/s", 1},
		{"each", "commands/key and lease", 2},
	},
	stores:  []store{onRedis, onValkey, onEtcd, onPostgres},
	common:  trial{Job: jobCrowd, Duration: 3 * time.Second, Lease: 3 * time.Second},
	atLeast: 3 * time.Second,
	points: []point{
		{label: "100 waiters, one key", trial: trial{Count: 100, Naming: oneName}},
		{label: "1,000 waiters, one key", quick: true, trial: trial{Count: 1000, Naming: oneName}},
		{label: "10 keys, a waiter each", x: 10, trial: trial{Count: 10, Naming: ownNames}},
		{label: "100 keys, a waiter each", x: 100, trial: trial{Count: 100, Naming: ownNames}},
		{label: "1,000 keys, a waiter each", x: 1000, quick: true,
			trial: trial{Count: 1000, Naming: ownNames}},
	},
	run: runCrowd,
}

// runCrowd makes one process hold locks while another process waits for them, and returns the cost
// of waiting.
func runCrowd(l *lab, _ contender, p point) (values, error) {
	holder := p.trial
	holder.Job, holder.Lease = jobHolding, time.Hour
	h, err := l.launch(holder)
	if err != nil {
		return nil, err
	}
	defer h.end()
	if err := h.ready(); err != nil {
		return nil, fmt.Errorf("holder: %w", err)
	}
	v, err := runOne(l, contender{}, p)
	if err != nil {
		return nil, err
	}
	if err := h.begin(); err != nil {
		return nil, err
	}
	if _, err := h.finish(); err != nil {
		return nil, fmt.Errorf("holder: %w", err)
	}
	return v, nil
}

// crowdNames returns, for each waiter, the name of the lock that it waits for.
func (c *child) crowdNames() []string {
	if c.Naming == oneName {
		names := make([]string, c.Count)
		for i := range names {
			names[i] = c.Name
		}
		return names
	}
	return lockNames(c.Name, c.Count)
}

// firstName returns the name of a lock that one goroutine waits for before the others start.
func (c *child) firstName() string { return c.Name + ":first" }

// holding holds locks. Another process, which calls crowd, waits for them.
func holding(c *child) (measured, error) {
	sys, err := c.open()
	if err != nil {
		return measured{}, err
	}
	defer sys.close()
	names := c.crowdNames()
	if c.Naming == oneName {
		names = names[:1]
	}
	names = append(names, c.firstName())
	lockers := make([]locker, len(names))
	if err := lockEach(sys, names, lockers); err != nil {
		return measured{}, err
	}
	if err := c.ready(); err != nil {
		return measured{}, err
	}
	if lost := unlockEach(lockers); lost > 0 {
		return measured{}, fmt.Errorf("%d locks were lost", lost)
	}
	return measured{}, nil
}

// crowd waits for held locks with many goroutines, and measures the cost of waiting.
func crowd(c *child) (measured, error) {
	sys, err := c.open()
	if err != nil {
		return measured{}, err
	}
	defer sys.close()
	if err := warmUp(sys, c.Name); err != nil {
		return measured{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	start := make(chan struct{})
	errs := make([]error, c.Count)
	var all sync.WaitGroup
	for i, name := range c.crowdNames() {
		party := 0
		if c.Naming == oneName {
			party = i
		}
		all.Go(func() {
			<-start
			errs[i] = waitFor(ctx, sys, name, party)
		})
	}
	connected := takeFootprint().sockets
	firstCtx, cancelFirst := context.WithCancel(ctx)
	firstErr := make(chan error, 1)
	go func() { firstErr <- waitFor(firstCtx, sys, c.firstName(), c.Count) }()
	time.Sleep(c.Duration / 6) // nothing signals that the call waits
	before := takeFootprint()
	close(start)
	time.Sleep(c.Duration / 2) // nothing signals that all calls wait
	if err := c.ready(); err != nil {
		cancelFirst()
		cancel()
		return measured{}, err
	}
	waiting := takeFootprint()
	cancelFirst()
	_, _, commands, err := c.usageDuring(c.Duration)
	cancel()
	all.Wait()
	errs = append(errs, <-firstErr)
	if err := errors.Join(append(errs, err)...); err != nil {
		return measured{}, err
	}
	keys := float64(c.Count)
	if c.Naming == oneName {
		keys = 1
	}
	n := float64(c.Count)
	return measured{Values: values{
		"goroutines": float64(waiting.goroutines - before.goroutines),
		"heap":       (float64(waiting.heap) - float64(before.heap)) / n,
		"stack":      (float64(waiting.stack) - float64(before.stack)) / n,
		"sockets":    float64(waiting.sockets - connected),
		"commands":   commands,
		"each":       commands * c.Lease.Seconds() / keys,
	}}, nil
}

// waitFor waits for a lock until the context ends. It returns an error if Lock returns earlier.
func waitFor(ctx context.Context, sys system, name string, party int) error {
	l, err := sys.locker(name, party)
	if err != nil {
		return err
	}
	if l.Lock(ctx) == nil {
		return fmt.Errorf("got %s, which another holds", name)
	}
	if ctx.Err() == nil {
		return fmt.Errorf("stopped waiting for %s", name)
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A naming selects the lock names that the goroutines of a loop use.
type naming string

const (
	oneName    naming = "one"   // all goroutines use one name
	ownNames   naming = "own"   // each goroutine has its own name
	freshNames naming = "fresh" // a new name for each lock
)

var workload1 = workload{
	id: "W1", title: "Uncontended lock and unlock",
	about: "“own key”: each goroutine locks its own key again and again; “fresh keys”: a new " +
		"name each time. “cancellable”: with a context that can end, as that of a request; else " +
		"with one that can't.",
	metrics: []metric{
		{"rate", "pairs/s", 0}, {"ratio", "÷ floor", 2}, {"twin", "÷ same steps, bare", 2},
		{"p50", "p50 µs", 0}, {"p99", "p99 µs", 0}, {"allocs", "allocs/pair", 0},
		{"bytes", "B/pair", 0},
	},
	stores:  []store{onRedis, onValkey, onEtcd, onPostgres},
	ratioOf: "rate",
	common:  trial{Job: jobLoop, Duration: time.Second, Lease: 30 * time.Second, Naming: ownNames},
	points: []point{
		{label: "1 goroutine, own key", x: 1, quick: true,
			trial: trial{Goroutines: 1, Endless: true}},
		{label: "1 goroutine, own key, cancellable", trial: trial{Goroutines: 1}},
		{label: "1 goroutine, fresh keys",
			trial: trial{Goroutines: 1, Naming: freshNames, Endless: true}},
		{label: "64 goroutines, own key", x: 64, quick: true,
			trial: trial{Goroutines: 64, Endless: true}},
		{label: "64 goroutines, own key, cancellable", trial: trial{Goroutines: 64}},
		{label: "64 goroutines, fresh keys",
			trial: trial{Goroutines: 64, Naming: freshNames, Endless: true}},
	},
	run: runPairs,
	chart: chart{
		name: "alone", title: "Nobody else wants the lock: locked and unlocked a second",
		metric: "rate", x: "goroutines, each with a lock of its own", series: []string{
			"Redis/dlock", "PostgreSQL/dlock", "Redis/bare go-redis", "Redis/redsync",
			"Redis/redislock",
		},
	},
}

// runPairs makes one process lock and unlock without contention.
func runPairs(l *lab, c contender, p point) (values, error) {
	if c.isJava() { // a Java program needs a file for the section, even without contention
		shared, remove, err := sharedSection()
		if err != nil {
			return nil, err
		}
		defer remove()
		p.trial.Shared = shared
	}
	var used usage
	reps, err := l.perform([]trial{p.trial}, func(f func() error) (err error) {
		used, err = usageOf(c, p.trial.Server, f)
		return err
	})
	if err != nil {
		return nil, err
	}
	v := reps[0].Values
	if v == nil { // the report comes from Java
		v = make(values)
	}
	v["rate"] = float64(total(reps[0].Counts)) / p.trial.Duration.Seconds()
	v["server"] = micros(used.cpu) / float64(max(reps[0].Entries, 1))
	if reps[0].Pairs.total > 0 { // slow contenders may have no pairs
		v["p50"], v["p99"] = micros(reps[0].Pairs.quantile(0.5)),
			micros(reps[0].Pairs.quantile(0.99))
	}
	return v, nil
}

var contended = []metric{
	{"rate", "locks/s", 0}, {"ratio", "÷ floor alone", 2}, {"jain", "Jain", 3},
	{"starved", "starved", 0},
	{"p99", "p99 wait ms", 3}, {"longest", "longest wait ms", 0}, {"commands", "commands/lock", 3},
	{"clashes", "two inside", 0},
}

var workload2 = workload{
	id: "W2", title: "One key, one process, empty critical section",
	about: "The floor is the bare client, uncontended, in one goroutine; without “alone” it is " +
		"the bare client that asks again and again. “longest wait” counts waits that the end cut " +
		"short, too. “two inside” is what exclusion forbids.",
	metrics: contended,
	stores:  []store{onRedis, onValkey, onEtcd, onPostgres},
	ratioOf: "rate",
	common: trial{
		Job: jobLoop, Duration: 2 * time.Second, Lease: 30 * time.Second, Naming: oneName,
	},
	points: []point{
		{label: "2 goroutines", x: 2, quick: true, processes: 1, trial: trial{Goroutines: 2}},
		{label: "8 goroutines", x: 8, processes: 1, trial: trial{Goroutines: 8}},
		{label: "64 goroutines", x: 64, quick: true, processes: 1, trial: trial{Goroutines: 64}},
		{label: "256 goroutines", x: 256, processes: 1, trial: trial{Goroutines: 256}},
	},
	run: runContended,
}

var workload3 = workload{
	id: "W3", title: "One key, several processes of 8 goroutines each, empty critical section",
	about: "As W2; “two inside” counts what the processes saw of each other in shared memory, " +
		"and increments that were lost. Redisson's fair lock takes part with up to four JVMs, of " +
		"8 threads each.",
	java: true,
	metrics: append(contended[:3:3],
		append([]metric{{"processes", "Jain, processes", 3}}, contended[3:]...)...),
	stores:  []store{onRedis, onValkey, onEtcd, onPostgres},
	ratioOf: "rate",
	common: trial{
		Job: jobLoop, Duration: 3 * time.Second, Lease: 30 * time.Second, Naming: oneName,
		Goroutines: 8,
	},
	points: []point{
		{label: "1 process", x: 1, processes: 1},
		{label: "2 processes", x: 2, processes: 2},
		{label: "4 processes", x: 4, quick: true, processes: 4},
		{label: "8 processes", x: 8, processes: 8},
		{label: "16 processes", x: 16, processes: 16},
		{label: "4 processes, 1 ms added to a round trip", quick: true, processes: 4,
			roundTrip: time.Millisecond},
	},
	run: runContended,
	chart: chart{
		name: "contended", title: "All want one lock: acquisitions a second", metric: "rate",
		x: "processes of eight goroutines", series: []string{
			"Redis/dlock", "etcd/dlock", "PostgreSQL/dlock", "Valkey/valkeylock", "Redis/redsync",
		},
	},
}

// sharedSection creates a file for the critical section of several processes.
func sharedSection() (file string, remove func(), err error) {
	f, err := os.CreateTemp("", "bench")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.Remove(f.Name()) }
	if err := errors.Join(f.Truncate(int64(unsafe.Sizeof(criticalSection{}))),
		f.Close()); err != nil {
		remove()
		return "", nil, err
	}
	return f.Name(), remove, nil
}

// runContended makes processes contend for one lock.
func runContended(l *lab, c contender, p point) (values, error) {
	shared, remove, err := sharedSection()
	if err != nil {
		return nil, err
	}
	defer remove()
	p.trial.Shared = shared
	trials := make([]trial, p.processes)
	for i := range trials {
		trials[i] = p.trial
	}
	for range p.jvms {
		java := p.trial
		java.Contender = string(c.store) + "/" + redissonName
		trials = append(trials, java)
	}
	var commands float64
	reps, err := l.perform(trials, func(f func() error) error {
		used, err := usageOf(c, p.trial.Server, f)
		commands = used.commands
		return err
	})
	if err != nil {
		return nil, err
	}
	return summary(reps, p, commands, shared)
}

// summary returns the metrics of processes that contended for a lock.
func summary(reps []measured, p point, commands float64, shared string) (values, error) {
	var waits, writes histogram
	var byGoroutine, byProcess []int64
	var entries, reads, clashes, starved int64
	var longest time.Duration
	for _, rep := range reps {
		waits.merge(rep.Waits)
		writes.merge(rep.Writes)
		entries -= rep.Reads
		reads += rep.Reads
		byGoroutine = append(byGoroutine, rep.Counts...)
		byProcess = append(byProcess, total(rep.Counts))
		entries += rep.Entries
		clashes += rep.Clashes
		longest = max(longest, rep.Longest)
	}
	for _, n := range byGoroutine {
		if n == 0 {
			starved++
		}
	}
	section, err := mapSection(shared)
	if err != nil {
		return nil, err
	}
	clashes += entries - section.count
	if err := section.unmap(); err != nil {
		return nil, err
	}
	v := values{
		"rate":      float64(total(byGoroutine)) / p.trial.Duration.Seconds(),
		"jain":      jain(byGoroutine),
		"processes": jain(byProcess),
		"starved":   float64(starved),
		"writer":    micros(writes.quantile(0.99)) / 1000,
		"p99":       micros(waits.quantile(0.99)) / 1000,
		"longest":   micros(longest) / 1000,
		"commands":  commands / float64(entries+reads),
		"clashes":   float64(clashes),
	}
	for i, rep := range reps {
		v["share"+strconv.Itoa(i+1)] = 100 * float64(byProcess[i]) / float64(total(byProcess))
		v["longest"+strconv.Itoa(i+1)] = micros(rep.Longest) / 1000
	}
	return v, nil
}

// loop makes goroutines lock and unlock until the trial's duration has elapsed.
func loop(c *child) (measured, error) {
	sys, err := c.open()
	if err != nil {
		return measured{}, err
	}
	defer sys.close()
	section, err := mapSection(c.Shared)
	if err != nil {
		return measured{}, err
	}
	warmSection, err := mapSection("")
	if err != nil {
		return measured{}, err
	}
	warm := c.trial
	warm.Name, warm.Duration = "warm:"+c.Name+":"+strconv.Itoa(os.Getpid()),
		min(c.Duration/4, 200*time.Millisecond)
	if _, err := loopFor(sys, warm, warmSection); err != nil {
		return measured{}, err
	}
	if err := c.ready(); err != nil {
		return measured{}, err
	}
	return loopFor(sys, c.trial, section)
}

// A turner is one of the goroutines of a loop.
type turner struct {
	sys     system
	party   int
	trial   trial
	section *criticalSection
	me      int64         // identifies it in the critical section
	napped  *atomic.Int64 // when any goroutine of this process last napped

	count, entries, reads, clashes int64
	waits, writes, pairs           histogram
	longest                        time.Duration
}

func loopFor(sys system, t trial, section *criticalSection) (measured, error) {
	turners := make([]*turner, t.Goroutines)
	lockers := make([]locker, t.Goroutines)
	var napped atomic.Int64
	napped.Store(-int64(time.Second)) // so that the first goroutine naps
	for i := range turners {
		turners[i] = &turner{
			sys: sys, trial: t, section: section, me: int64(os.Getpid())<<16 + int64(i) + 1,
			napped: &napped,
		}
		name := t.Name
		switch t.Naming {
		case oneName:
			turners[i].party = i
		case ownNames, freshNames:
			name += ":" + strconv.Itoa(i)
			turners[i].section = new(criticalSection)
		}
		var err error
		if lockers[i], err = sys.locker(name, turners[i].party); err != nil {
			return measured{}, err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, begin := processCPU(), time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	timer := time.AfterFunc(t.Duration, cancel)
	defer timer.Stop()
	if t.Endless {
		ctx = context.Background()
	}
	errs := make([]error, len(turners))
	var all sync.WaitGroup
	for i, turn := range turners {
		all.Go(func() { errs[i] = turn.loop(ctx, lockers[i], begin) })
	}
	all.Wait()
	cpu = processCPU() - cpu
	runtime.ReadMemStats(&after)
	var rep measured
	for i, turn := range turners {
		if errs[i] != nil {
			return measured{}, errs[i]
		}
		rep.Counts = append(rep.Counts, turn.count)
		rep.Entries += turn.entries
		rep.Reads += turn.reads
		rep.Clashes += turn.clashes
		rep.Waits.merge(turn.waits)
		rep.Writes.merge(turn.writes)
		rep.Pairs.merge(turn.pairs)
		rep.Longest = max(rep.Longest, turn.longest)
	}
	rep.Values = values{
		"allocs": float64(after.Mallocs-before.Mallocs) / float64(max(rep.Entries, 1)),
		"bytes":  float64(after.TotalAlloc-before.TotalAlloc) / float64(max(rep.Entries, 1)),
		"client": micros(cpu) / float64(max(rep.Entries, 1)),
	}
	return rep, nil
}

// loop locks and unlocks until the trial's duration has passed since start.
func (t *turner) loop(ctx context.Context, l locker, start time.Time) error {
	// time.Since is cheaper than time.Now, because it doesn't read the wall clock.
	now := func() time.Duration { return time.Since(start) }
	for begin := now(); begin < t.trial.Duration; {
		if t.trial.Naming == freshNames {
			var err error
			name := t.trial.Name + ":" + strconv.FormatInt(t.me, 10) + ":" +
				strconv.FormatInt(t.entries, 10)
			if l, err = t.sys.locker(name, t.party); err != nil {
				return err
			}
		}
		side, shares := t.side(l)
		err := side.Lock(ctx)
		inside := now()
		t.longest = max(t.longest, inside-begin)
		if err != nil {
			if ctx.Err() != nil {
				return nil // the time has elapsed
			}
			return fmt.Errorf("lock: %w", err)
		}
		t.entries++
		switch {
		case shares:
			t.reads++
			t.clashes += t.section.share()
			t.nap(inside)
			t.section.unshare()
		case t.trial.Kind == permits:
			t.reads++
			t.clashes += t.section.crowd(mostInside)
			t.nap(inside)
			t.section.unshare()
		default:
			t.clashes += t.section.enter(t.me)
			t.nap(inside)
			t.clashes += t.section.leave(t.me)
		}
		// Some packages release a lock when the context that was passed to Lock ends. So ignore
		// errors from Unlock once that context has ended.
		if err := side.Unlock(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("unlock: %w", err)
		}
		end := now()
		if inside < t.trial.Duration {
			t.count++
			t.waits.add(inside - begin)
			if !shares {
				t.writes.add(inside - begin)
			}
			t.pairs.add(end - begin)
		}
		begin = end
	}
	return nil
}

// side returns l or its shared side, chosen at random, and whether it is the shared side.
func (t *turner) side(l locker) (side locker, shares bool) {
	rw, ok := l.(sharer)
	if !ok {
		return l, false
	}
	if rand.IntN(100) < t.trial.Writes {
		return l, false
	}
	return rw.shared(), true
}

// nap stays in the critical section for the duration of a turn. If that is 0, it sometimes sleeps
// for 100 µs. Without these sleeps, two parties on one CPU would almost never be inside at the same
// time, even with a broken lock.
func (t *turner) nap(now time.Duration) {
	const every = 100 * time.Millisecond
	if t.trial.Inside > 0 {
		time.Sleep(t.trial.Inside)
	} else if t.trial.Naming == oneName && now > time.Duration(t.napped.Load())+every {
		t.napped.Store(int64(now))
		time.Sleep(100 * time.Microsecond)
	}
}

// A criticalSection detects parties that are inside at the same time, across all processes that
// share it. Exclusive parties access it as ordinary memory, synchronized only by the lock under
// test.
type criticalSection struct {
	inside  int64 // the party inside; 0: none
	count   int64 // the number of entries
	sharing atomic.Int64
}

// mapSection maps a file that contains the critical section into memory. If the file's name is
// empty, it makes a new critical section. The race detector can't see that a lock in a store orders
// the accesses, but it ignores mapped memory, and so reports no races.
func mapSection(file string) (*criticalSection, error) {
	fd, flags := -1, unix.MAP_SHARED|unix.MAP_ANON
	if file != "" {
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		fd, flags = int(f.Fd()), unix.MAP_SHARED
	}
	memory, err := unix.Mmap(fd, 0, int(unsafe.Sizeof(criticalSection{})),
		unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, err
	}
	return (*criticalSection)(unsafe.Pointer(&memory[0])), nil
}

func (s *criticalSection) unmap() error {
	return unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)))
}

// enter and leave are called by exclusive parties. They return 1 if another party is inside.

func (s *criticalSection) enter(me int64) (clashes int64) {
	if s.inside != 0 || s.sharing.Load() != 0 {
		clashes = 1
	}
	s.inside = me
	s.count++
	return clashes
}

// share and unshare are called by parties that may be inside together. share returns 1 if an
// exclusive party is inside.

func (s *criticalSection) share() (clashes int64) {
	s.sharing.Add(1)
	if s.inside != 0 {
		clashes = 1
	}
	return clashes
}

func (s *criticalSection) unshare() { s.sharing.Add(-1) }

// crowd is like share, but for a section with a maximum number of parties inside. It returns 1 if
// more are inside.
func (s *criticalSection) crowd(most int64) (clashes int64) {
	if s.sharing.Add(1) > most {
		clashes = 1
	}
	return clashes
}

func (s *criticalSection) leave(me int64) (clashes int64) {
	if s.inside != me || s.sharing.Load() != 0 {
		clashes = 1
	}
	s.inside = 0
	return clashes
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

var workload4 = workload{
	id:    "W4",
	title: "Hand-over to a waiter in another process: from the call of unlock to the waiter inside",
	about: "The floor: a message that is published with the release, and then one round trip; " +
		"“our scripts” are the same with the scripts that dlock sends. " +
		"The long holds are measured on eight keys at once, since they mostly wait.",
	metrics: []metric{
		{"p50", "p50 µs", 0}, {"ratio", "p50 ÷ floor", 2}, {"twin", "p50 ÷ our scripts", 2},
		{"p99", "p99 µs", 0}, {"n", "hand-overs", 0},
	},
	stores:  []store{onRedis, onValkey, onEtcd, onPostgres},
	ratioOf: "p50",
	common:  trial{Lease: 30 * time.Second},
	points: []point{
		{label: "held 2–20 ms", x: 11, quick: true,
			trial: trial{
				Duration: 4 * time.Second, Pairs: 1, Holds: [2]time.Duration{
					2 * time.Millisecond, 20 * time.Millisecond,
				},
			}},
		{label: "held 120–620 ms", x: 370, quick: true,
			trial: trial{
				Duration: 12 * time.Second, Pairs: 8, Holds: [2]time.Duration{
					120 * time.Millisecond, 620 * time.Millisecond,
				},
			}},
	},
	run: runHandOver,
	chart: chart{
		name: "waited", title: "Another process waits: µs from the unlock until it is inside, p50",
		metric: "p50", x: "ms that each holds the lock, on average", series: []string{
			"Redis/dlock", "etcd/dlock", "PostgreSQL/dlock", "Redis/redsync", "Redis/redislock",
		},
	},
}

// runHandOver measures how long a lock takes to pass from one process to another. The two processes
// share several locks, one for each pair of goroutines. For each lock, one process acquires it and
// the other waits for it.
func runHandOver(l *lab, _ contender, p point) (values, error) {
	var holders, waiters, all []*os.File
	defer func() {
		for _, f := range all {
			f.Close()
		}
	}()
	for range p.trial.Pairs {
		var ends [4]*os.File
		for i := 0; i < len(ends); i += 2 {
			var err error
			if ends[i], ends[i+1], err = os.Pipe(); err != nil {
				return nil, err
			}
			all = append(all, ends[i], ends[i+1])
		}
		holders = append(holders, ends[0], ends[3])
		waiters = append(waiters, ends[2], ends[1])
	}
	holder, waiter := p.trial, p.trial
	holder.Job, waiter.Job = jobHolder, jobWaiter
	first, err := l.launch(holder, holders...)
	if err != nil {
		return nil, err
	}
	defer first.end()
	second, err := l.launch(waiter, waiters...)
	if err != nil {
		return nil, err
	}
	defer second.end()
	for _, f := range all { // so that readers notice when the process at the other end exits
		f.Close()
	}
	all = nil
	for _, step := range []func() error{first.ready, second.ready, second.begin, first.begin} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	_, err = first.finish()
	rep, err2 := second.finish()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	return values{
		"p50": micros(rep.Waits.quantile(0.5)),
		"p99": micros(rep.Waits.quantile(0.99)),
		"n":   float64(rep.Waits.total),
	}, nil
}

// pipes returns the pipes that connect a pair's goroutine with its peer in the other process.
func pipes(pair int) (in, out *os.File, err error) {
	const first = 3
	files := make([]*os.File, 2)
	for i := range files {
		fd := first + 2*pair + i
		if err := unix.SetNonblock(fd, true); err != nil { // or reads would block threads
			return nil, nil, err
		}
		files[i] = os.NewFile(uintptr(fd), "pipe")
	}
	return files[0], files[1], nil
}

// inPairs calls f concurrently for each pair, with the pair's lock and pipes. It closes the pipes
// when f returns.
func (c *child) inPairs(f func(pair int, l locker, in, out *os.File) error) error {
	sys, err := c.open()
	if err != nil {
		return err
	}
	defer sys.close()
	lockers := make([]locker, c.Pairs)
	for i := range lockers {
		if lockers[i], err = sys.locker(c.Name+":"+strconv.Itoa(i), 0); err != nil {
			return err
		}
	}
	if err := c.ready(); err != nil {
		return err
	}
	errs := make([]error, c.Pairs)
	var all sync.WaitGroup
	for i, l := range lockers {
		all.Go(func() {
			in, out, err := pipes(i)
			if err != nil {
				errs[i] = err
				return
			}
			defer in.Close()
			defer out.Close()
			errs[i] = f(i, l, in, out)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// handOver acquires each lock and holds it while the other process waits. Then it calls Unlock, and
// sends the time of that call to the other process.
func handOver(c *child) (measured, error) {
	return measured{}, c.inPairs(func(_ int, l locker, in, out *os.File) error {
		deadline := time.Now().Add(c.Duration)
		for first := true; first || time.Now().Before(deadline); first = false {
			if err := l.Lock(context.Background()); err != nil {
				return err
			}
			if err := send(out, 0); err != nil {
				return err
			}
			time.Sleep(c.Holds[0] + rand.N(c.Holds[1]-c.Holds[0]))
			called := clock()
			if err := l.Unlock(); err != nil {
				return err
			}
			if err := send(out, called); err != nil {
				return err
			}
			if _, err := receive(in); err != nil { // the other process has released the lock
				return err
			}
		}
		return nil
	})
}

// takeOver waits for each lock while the other process holds it. It measures the time from the
// other process's call to Unlock until its own acquisition.
func takeOver(c *child) (measured, error) {
	took := make([]histogram, c.Pairs)
	err := c.inPairs(func(pair int, l locker, in, out *os.File) error {
		for {
			if _, err := receive(in); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			began := clock()
			if err := l.Lock(context.Background()); err != nil {
				return err
			}
			inside := clock()
			if err := l.Unlock(); err != nil {
				return err
			}
			called, err := receive(in)
			if err != nil {
				return err
			}
			if inside < called {
				return fmt.Errorf("inside %v before the other called unlock", called-inside)
			}
			if began < called { // otherwise the wait began after the unlock, on a slow machine
				took[pair].add(inside - called)
			}
			if err := send(out, 0); err != nil {
				return err
			}
		}
	})
	var rep measured
	for _, h := range took {
		rep.Waits.merge(h)
	}
	return rep, err
}

func send(to *os.File, at time.Duration) error {
	return binary.Write(to, binary.LittleEndian, at)
}

func receive(from *os.File) (at time.Duration, err error) {
	err = binary.Read(from, binary.LittleEndian, &at)
	return at, err
}

// clock returns the monotonic time, which is the same in all processes.
func clock() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // this clock always exists
	}
	return time.Duration(now.Nano())
}

// processCPU returns the CPU time that this process has used.
func processCPU() time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		panic(err) // it never fails for this process
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

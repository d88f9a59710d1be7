package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

var workload10 = workload{
	id:    "W10",
	title: "Waiters on locks whose holder is dead: from the end of the lease to the waiter inside",
	about: "One process waits for all, each of which ends at a time of its own. The end is what " +
		"the server says, to the millisecond.",
	metrics: []metric{
		{"p50", "p50 ms", 1}, {"longest", "longest ms", 1}, {"n", "locks", 0},
	},
	stores: []store{onRedis, onValkey},
	java:   true,
	common: trial{Job: jobAwait, Lease: 30 * time.Second},
	points: []point{{label: "a waiter each", quick: true, trial: trial{Count: 40}}},
	run:    runLate,
}

// runLate makes a process wait for locks whose holders have died. It measures how long after the
// end of each lease the process gets the lock.
func runLate(l *lab, _ contender, p point) (values, error) {
	const (
		first = 2 * time.Second // long enough for the process to begin waiting for all locks
		apart = 100 * time.Millisecond
	)
	waiter, err := l.launch(p.trial)
	if err != nil {
		return nil, err
	}
	defer waiter.end()
	if err := waiter.ready(); err != nil {
		return nil, err
	}
	ends := make([]time.Time, p.trial.Count)
	for i, name := range lockNames(p.trial.Name, p.trial.Count) {
		if ends[i], err = holdAndDie(p.trial.Server, name,
			first+time.Duration(i)*apart); err != nil {
			return nil, err
		}
	}
	if err := waiter.begin(); err != nil {
		return nil, err
	}
	rep, err := waiter.finish()
	if err != nil {
		return nil, err
	}
	if len(rep.Inside) != len(ends) {
		return nil, fmt.Errorf("%d of %d locks were had", len(rep.Inside), len(ends))
	}
	var late []float64
	var longest time.Duration
	for i, inside := range rep.Inside {
		d := inside.Sub(ends[i])
		if d < 0 {
			return nil, fmt.Errorf("inside %v before the lease ended", -d)
		}
		late = append(late, micros(d)/1000)
		longest = max(longest, d)
	}
	return values{"p50": median(late), "longest": micros(longest) / 1000, "n": float64(len(late))},
		nil
}

// holdAndDie acquires a lock and never renews or releases it. It returns the time at which the
// server frees the lock.
func holdAndDie(addr, name string, lease time.Duration) (end time.Time, err error) {
	call := redisson.Acquire(backend.AcquireRequest{Name: name, Owner: rand.Text(), Lease: lease})
	args := append([]string{"EVAL", call.Script.Text, strconv.Itoa(len(call.Keys))}, call.Keys...)
	refused, err := testservers.Do(addr, append(args, call.Args...)...)
	if err != nil {
		return end, err
	}
	if refused != "" {
		return end, fmt.Errorf("%s is not free", name)
	}
	text, err := testservers.Do(addr, "PEXPIRETIME", name)
	if err != nil {
		return end, err
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	return time.UnixMilli(ms), err
}

// await waits for several locks concurrently, and reports when it acquired each of them.
func await(c *child) (measured, error) {
	sys, err := c.open()
	if err != nil {
		return measured{}, err
	}
	defer sys.close()
	if err := warmUp(sys, c.Name); err != nil {
		return measured{}, err
	}
	if err := c.ready(); err != nil {
		return measured{}, err
	}
	inside := make([]time.Time, c.Count)
	errs := make([]error, c.Count)
	var all sync.WaitGroup
	for i, name := range lockNames(c.Name, c.Count) {
		all.Go(func() {
			l, err := sys.locker(name, i)
			if err == nil {
				err = l.Lock(context.Background())
			}
			inside[i] = time.Now()
			if err == nil {
				err = l.Unlock()
			}
			errs[i] = err
		})
	}
	all.Wait()
	return measured{Inside: inside}, errors.Join(errs...)
}

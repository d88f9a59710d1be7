package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A cause is the reason why a leader stops leading.
type cause string

const (
	resigned  cause = "resigned"
	killed    cause = "killed"
	paused    cause = "paused"
	restarted cause = "store restarted"
)

var workload18 = workload{
	id:    "W18",
	title: "Election: from a leader's end to the next one's lead running, three processes",
	about: "The lease is 3 s, and renewed: a leader that ends at any moment has left between two " +
		"thirds of it and all. “resigned” counts from the call of Resign; “killed” and “paused” " +
		"from the signal to the process, and “after the lease” from when the server lets the key " +
		"expire, to the millisecond; “store restarted” from when a server that was killed " +
		"answers again, empty. “concurrency” is etcd's Election, with a session for each " +
		"candidate.",
	metrics: []metric{
		{"p50", "p50 ms", 1}, {"longest", "longest ms", 1}, {"late", "after the lease, p50 ms", 1},
		{"n", "leaders", 0},
	},
	stores:  []store{onRedis, onValkey, onEtcd},
	common:  trial{Job: jobCampaign, Lease: 3 * time.Second},
	atLeast: 3 * time.Second,
	points: []point{
		{label: string(resigned), cause: resigned, quick: true,
			trial: trial{Duration: 6 * time.Second}},
		{label: string(killed), cause: killed, quick: true,
			trial: trial{Duration: 20 * time.Second}},
		{label: string(paused), cause: paused, quick: true,
			trial: trial{Duration: 20 * time.Second}},
		{label: string(restarted), cause: restarted, quick: true, on: []store{onRedis, onValkey},
			trial: trial{Duration: 10 * time.Second}},
	},
	run: runElection,
}

// A notice is a message between a candidate and the parent process: a candidate's report about
// itself, or an order to resign.
type notice struct {
	Of words
	At time.Duration // as returned by clock
}

type words int32

const (
	leads   words = iota
	ends          // the lead function returns
	resigns       // the candidate is about to resign
)

func say(to *os.File, of words) error {
	return binary.Write(to, binary.LittleEndian, notice{of, clock()})
}

func hear(from io.Reader) (n notice, err error) {
	err = binary.Read(from, binary.LittleEndian, &n)
	return n, err
}

// An elector is a system that supports elections.
type elector interface {
	election(name string) election
}

// An election is a candidate's handle on the election with a given name.
type election interface {
	// Run campaigns for leadership and calls lead while leading. It repeats this until ctx is done.
	Run(ctx context.Context, lead func(context.Context) error) error

	// Resign gives up leadership. The candidate leads again only after another one has led.
	Resign()
}

// campaign runs a candidate until the parent process closes the pipe for orders.
func campaign(c *child) (measured, error) {
	sys, err := c.open()
	if err != nil {
		return measured{}, err
	}
	defer sys.close()
	if err := warmUp(sys, c.Name+":"+strconv.Itoa(os.Getpid())); err != nil {
		return measured{}, err
	}
	e := sys.(elector).election(c.Name)
	if err := c.ready(); err != nil {
		return measured{}, err
	}
	in, out, err := pipes(0)
	if err != nil {
		return measured{}, err
	}
	defer in.Close()
	defer out.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		for {
			if _, err := hear(in); err != nil || say(out, resigns) != nil {
				return
			}
			e.Resign()
		}
	}()
	err = e.Run(ctx, func(ctx context.Context) error {
		if err := say(out, leads); err != nil {
			return err
		}
		<-ctx.Done()
		if err := say(out, ends); err != nil {
			return err
		}
		return ctx.Err()
	})
	if ctx.Err() != nil {
		err = nil
	}
	return measured{}, err
}

// candidates is the parent process's view of the processes that take part in an election.
type candidates struct {
	lab     *lab
	trial   trial
	all     []*candidate
	notices chan said
	over    chan struct{}
	readers sync.WaitGroup

	leader *candidate // the latest leader
	since  time.Duration
}

type candidate struct {
	*process
	orders *os.File
}

// said pairs a notice with the candidate that sent it.
type said struct {
	notice
	by *candidate
}

func newCandidates(l *lab, t trial) *candidates {
	return &candidates{lab: l, trial: t, notices: make(chan said), over: make(chan struct{})}
}

// join starts another candidate.
func (c *candidates) join() error {
	orders, toCandidate, err := os.Pipe()
	if err != nil {
		return err
	}
	defer orders.Close()
	fromCandidate, notices, err := os.Pipe()
	if err != nil {
		toCandidate.Close()
		return err
	}
	defer notices.Close()
	p, err := c.lab.launch(c.trial, orders, notices)
	if err != nil {
		toCandidate.Close()
		fromCandidate.Close()
		return err
	}
	one := &candidate{p, toCandidate}
	c.all = append(c.all, one)
	c.readers.Go(func() {
		defer fromCandidate.Close()
		for {
			n, err := hear(fromCandidate)
			if err != nil {
				return
			}
			select {
			case c.notices <- said{n, one}:
			case <-c.over:
				return
			}
		}
	})
	if err := p.ready(); err != nil {
		return err
	}
	return p.begin()
}

// end makes all candidates leave.
func (c *candidates) end() error {
	close(c.over)
	var errs []error
	for _, one := range c.all {
		one.orders.Close()
		_, err := one.finish()
		errs = append(errs, err)
	}
	c.readers.Wait()
	return errors.Join(errs...)
}

// await returns the next notice that matches.
func (c *candidates) await(what string, wanted func(said) bool) (said, error) {
	if s, ok := c.listen(patience, wanted); ok {
		return s, nil
	}
	return said{}, fmt.Errorf("never happened: %s", what)
}

// listen receives notices until one matches or d has elapsed. It reports whether one matched.
func (c *candidates) listen(d time.Duration, wanted func(said) bool) (s said, ok bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case s = <-c.notices:
			if s.Of == leads && s.At > c.since {
				c.leader, c.since = s.by, s.At
			}
			if wanted(s) {
				return s, true
			}
		case <-timer.C:
			return s, false
		}
	}
}

// awaitLeader waits until there is a leader whose term began after the given time.
func (c *candidates) awaitLeader(after time.Duration) error {
	if c.since > after {
		return nil
	}
	_, err := c.await("a leader", func(s said) bool { return s.Of == leads && s.At > after })
	return err
}

// A succession records the change from one leader to the next.
type succession struct {
	took   time.Duration // time from the loss to the next term; negative if the term began first
	late   time.Duration // time since the old leader's lease expired
	lapsed bool          // whether the lease's expiry is known; otherwise late is meaningless
}

// runElection measures how long it takes a new leader to succeed the old one.
func runElection(l *lab, c contender, p point) (v values, err error) {
	all := newCandidates(l, p.trial)
	defer func() { err = errors.Join(err, all.end()) }()
	for range 3 {
		if err := all.join(); err != nil {
			return nil, err
		}
	}
	if err := all.awaitLeader(0); err != nil {
		return nil, err
	}
	var took, late []float64
	deadline := clock() + p.trial.Duration
	for first := true; first || clock() < deadline; first = false {
		// Nothing signals that the other candidates have begun to wait, so give them time. The
		// random part of the pause makes the leader stop at a random moment between two renewals.
		all.listen(200*time.Millisecond+rand.N(p.trial.Lease/3), func(said) bool { return false })
		s, err := all.succeed(c, p.cause)
		if err != nil {
			return nil, err
		}
		if s.took < 0 {
			continue
		}
		took = append(took, micros(s.took)/1000)
		if s.lapsed {
			late = append(late, micros(s.late)/1000)
		}
	}
	if len(took) == 0 {
		return nil, fmt.Errorf("nobody led until %s", p.cause)
	}
	return values{"p50": median(took), "longest": slices.Max(took), "late": median(late),
		"n": float64(len(took))}, nil
}

// succeed makes the leader stop for the given cause, and waits for the next leader.
func (c *candidates) succeed(who contender, why cause) (succession, error) {
	switch why {
	case resigned:
		return c.resign()
	case killed:
		return c.kill(who)
	case paused:
		return c.pause(who)
	default:
		return c.restart(who)
	}
}

func (c *candidates) resign() (s succession, err error) {
	old, led := c.leader, c.since
	if err := say(old.orders, resigns); err != nil {
		return s, err
	}
	// The next leader may report before the old one does, so wait for a notice from the old one.
	from, err := c.await("a resignation", func(s said) bool {
		return s.Of == resigns && s.by == old
	})
	if err != nil {
		return s, err
	}
	err = c.awaitLeader(led)
	return succession{took: c.since - from.At}, err
}

func (c *candidates) kill(who contender) (s succession, err error) {
	old, led := c.leader, c.since
	i := slices.Index(c.all, old)
	c.all = slices.Delete(c.all, i, i+1)
	from := clock()
	if err := old.cmd.Process.Kill(); err != nil {
		return s, err
	}
	old.process.end()
	old.orders.Close() // after the kill, since closing it earlier would make the candidate resign
	if s, err = c.lapse(who, led, from); err != nil {
		return s, err
	}
	return s, c.join()
}

func (c *candidates) pause(who contender) (s succession, err error) {
	old, led := c.leader, c.since
	from := clock()
	if err := old.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return s, err
	}
	s, err = c.lapse(who, led, from)
	if err := errors.Join(err, old.cmd.Process.Signal(syscall.SIGCONT)); err != nil {
		return s, err
	}
	_, err = c.await("the end of a lead that was paused", func(s said) bool {
		return s.Of == ends && s.by == old
	})
	return s, err
}

// lapse waits for the next leader after the old one has died or been paused.
func (c *candidates) lapse(who contender, led, from time.Duration) (s succession, err error) {
	var end time.Duration
	if who.store != onEtcd { // etcd reports the remaining lease only in whole seconds
		if end, s.lapsed, err = leaseEnd(c.trial.Server); err != nil {
			return s, err
		}
	}
	err = c.awaitLeader(led)
	s.took, s.late = c.since-from, c.since-end
	return s, err
}

// leaseEnd returns when the only lock on the server expires, and whether there is one.
func leaseEnd(addr string) (end time.Duration, ok bool, err error) {
	text, err := testservers.Do(addr, "EVAL", `for _, key in ipairs(redis.call("keys", "*")) do
	local at = redis.call("pexpiretime", key)
	if redis.call("type", key).ok == "hash" and at > 0 then return tostring(at) end
end`, "0")
	if err != nil || text == "" {
		return 0, false, err
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	return clock() + time.Until(time.UnixMilli(ms)), err == nil, err
}

// restart replaces the server with an empty one, and measures the time from the new server's first
// answer until a candidate leads.
func (c *candidates) restart(who contender) (s succession, err error) {
	led, from := c.since, clock()
	if err := c.lab.restart(who.store); err != nil {
		return s, err
	}
	back := clock()
	err = c.awaitLeader(led)
	s.took = c.since - from
	if s.took > 0 {
		s.took = max(c.since-back, 0)
	}
	return s, err
}

// election implements [elector].
func (s *dlockSystem) election(name string) election { return s.client.Election(name) }

// concurrencyElection is a candidate in an election of etcd's concurrency package.
type concurrencyElection struct {
	s        *concurrencySystem
	name     string
	resigned chan struct{}
}

func (s *concurrencySystem) election(name string) election {
	return &concurrencyElection{s, name, make(chan struct{})}
}

func (e *concurrencyElection) Resign() {
	select {
	case e.resigned <- struct{}{}:
	default: // it doesn't lead
	}
}

// Run campaigns and leads in a session. When the session ends, Run opens another.
func (e *concurrencyElection) Run(ctx context.Context, lead func(context.Context) error) error {
	for {
		session, err := concurrency.NewSession(e.s.client, concurrency.WithTTL(e.s.ttl),
			concurrency.WithContext(ctx))
		if err != nil {
			return err
		}
		for lost := false; !lost; {
			if lost, err = e.once(ctx, session, lead); err != nil {
				return err
			}
		}
	}
}

// once campaigns for one term, and leads if elected. It reports whether the session has ended.
func (e *concurrencyElection) once(
	ctx context.Context, session *concurrency.Session, lead func(context.Context) error,
) (lost bool, err error) {
	one := concurrency.NewElection(session, e.name)
	if err := one.Campaign(ctx, strconv.Itoa(os.Getpid())); err != nil {
		return false, err
	}
	leading, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		lead(leading)
	}()
	select {
	case <-e.resigned:
	case <-session.Done():
		lost = true
	case <-ctx.Done():
	}
	cancel()
	<-done
	if lost {
		return true, ctx.Err()
	}
	return false, errors.Join(one.Resign(ctx), ctx.Err())
}

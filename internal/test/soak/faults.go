package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A link is a connection that can be disturbed. It is a proxy in front of a server, or a wire to an
// in-memory store.
type link interface {
	Cut()
	Refuse(bool)
	SetDelay(time.Duration)
	Block(faults.Direction)
	Unblock(faults.Direction)
	LoseReply(match func(faults.Request) bool) (lost <-chan struct{})
	Hold(match func(faults.Request) bool) (held <-chan struct{}, deliver func())
}

var _ link = (*faults.Proxy)(nil)

// A fault is one kind of disturbance. The function do causes the disturbance, ends it, and reports
// whether it disturbed anything. When ctx ends, the function must return soon.
type fault struct {
	name string
	do   func(ctx context.Context, dice *chance) bool
}

// chance makes the random choices.
type chance struct{ *rand.Rand }

// upTo returns a random duration of at most d.
func (c *chance) upTo(d time.Duration) time.Duration {
	return time.Duration(c.Int64N(int64(d)) + 1)
}

// pause waits for a random duration of at most d.
func (c *chance) pause(ctx context.Context, d time.Duration) { wait(ctx, c.upTo(d)) }

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// A mischief injects faults, and counts them.
type mischief struct {
	running sync.WaitGroup
	mu      sync.Mutex
	counts  map[string]int
}

// start injects random faults one after another, with pauses, until ctx ends.
func (m *mischief) start(ctx context.Context, dice *chance, pause time.Duration, all []fault) {
	if len(all) == 0 {
		return
	}
	m.running.Go(func() {
		for {
			dice.pause(ctx, pause)
			if ctx.Err() != nil {
				return
			}
			if f := all[dice.IntN(len(all))]; f.do(ctx, dice) {
				m.mu.Lock()
				m.counts[f.name]++
				m.mu.Unlock()
			}
		}
	})
}

// linkFaults returns the faults of a link.
func linkFaults(l link, lease time.Duration) []fault {
	black := func(d faults.Direction) func(context.Context, *chance) bool {
		return func(ctx context.Context, dice *chance) bool {
			l.Block(d)
			dice.pause(ctx, 2*lease)
			if dice.IntN(2) == 0 {
				l.Cut()
			}
			l.Unblock(d)
			return true
		}
	}
	lose := &loser{link: l}
	return []fault{
		{"cut", func(context.Context, *chance) bool {
			l.Cut()
			return true
		}},
		{"refused", func(ctx context.Context, dice *chance) bool {
			l.Refuse(true)
			l.Cut()
			dice.pause(ctx, lease)
			l.Refuse(false)
			return true
		}},
		{"delay", func(ctx context.Context, dice *chance) bool {
			l.SetDelay(dice.upTo(lease / 4))
			dice.pause(ctx, 2*lease)
			l.SetDelay(0)
			return true
		}},
		{"black hole to the server", black(faults.ToServer)},
		{"black hole to the client", black(faults.ToClient)},
		{"black hole both ways", black(faults.Both)},
		{"reply lost", lose.do},
		{"request late", func(ctx context.Context, dice *chance) bool {
			return late(ctx, dice, l, lease)
		}},
	}
}

// late delays a request.
func late(ctx context.Context, dice *chance, l link, lease time.Duration) bool {
	held, deliver := l.Hold(nth(dice.IntN(5)))
	defer deliver()
	over, cancel := context.WithTimeout(ctx, lease)
	defer cancel()
	select {
	case <-held:
	case <-over.Done():
		return false
	}
	if dice.IntN(2) == 0 {
		dice.pause(ctx, 2*lease)
	} else {
		dice.pause(ctx, lease/5)
	}
	return true
}

// nth returns a function that ignores n steps and matches the next one.
func nth(n int) func(faults.Request) bool {
	return func(r faults.Request) bool {
		if !isStep(r) {
			return false
		}
		n--
		return n < 0
	}
}

// isStep reports whether a request is a step on a lock, or part of such a step.
func isStep(r faults.Request) bool {
	if len(r.Words) > 0 {
		return strings.HasPrefix(strings.ToLower(r.Words[0]), "eval")
	}
	if bytes.Contains(r.Bytes, []byte(".distsync_v1_")) { // a function in PostgreSQL
		return true
	}
	return r.Method == memoryStep || slices.Contains(etcdSteps, r.Method)
}

var etcdSteps = []string{
	"/etcdserverpb.KV/Txn",
	"/etcdserverpb.Lease/LeaseGrant",
	"/etcdserverpb.Lease/LeaseRevoke",
	"/etcdserverpb.Lease/LeaseKeepAlive",
}

// A loser is a link that can lose replies. At most one loss is pending at a time.
type loser struct {
	link
	armed atomic.Pointer[func(faults.Request) bool]
	lost  <-chan struct{} // closed when the reply is lost; nil if no loss is pending
}

func (l *loser) do(ctx context.Context, dice *chance) bool {
	if l.lost == nil {
		l.lost = l.LoseReply(func(r faults.Request) bool {
			match := l.armed.Load()
			return match != nil && (*match)(r)
		})
	}
	l.armed.Store(new(nth(dice.IntN(5))))
	defer l.armed.Store(nil)
	over, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	select {
	case <-l.lost:
		l.lost = nil
		return true
	case <-over.Done():
		return false
	}
}

// freezes returns the faults that freeze a server for a while.
func freezes(s *testservers.Server, lease time.Duration) []fault {
	freeze := func(shortest, longest time.Duration) func(context.Context, *chance) bool {
		return func(ctx context.Context, dice *chance) bool {
			s.Stop()
			wait(ctx, shortest+dice.upTo(longest-shortest))
			s.Cont()
			return true
		}
	}
	return []fault{
		{"server frozen", freeze(0, lease)},
		{"server frozen for more than a lease", freeze(lease, 2*lease)},
	}
}

package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// leftOf says for how long a store keeps a claim, or 0.
func leftOf(view backend.Inspector, cl *claim) time.Duration {
	i, err := view.Inspect(context.Background(), backend.InspectRequest{Name: cl.object.name})
	if err != nil {
		panic(err)
	}
	for _, h := range i.Holders {
		if h.Owner == cl.owner && h.Kind == backend.Kind(cl.kind) && !h.Kept {
			return h.Remaining
		}
	}
	return 0
}

// beliefs fails the test where a client believes in what the store doesn't keep.
func beliefs(t *testing.T, view backend.Inspector, clients []*Client) {
	t.Helper()
	for n, c := range clients {
		c.mu.Lock()
		for _, table := range c.state.objects {
			for name, o := range table {
				holds := o.readers()
				if o.alone != nil {
					holds = append(holds, o.alone)
				}
				for h := range o.permitted() {
					holds = append(holds, h)
				}
				for _, h := range holds {
					now := c.now()
					if !h.valid(now) {
						continue
					}
					if left, kept := h.claim.Until()-now, leftOf(view, h.claim); left > kept {
						t.Errorf("client %d believes in %s %q for %v, which the store keeps for "+
							"%v: hold %+v, claim %+v", n, h.claim.kind, name, left, kept, h,
							h.claim)
					}
				}
			}
		}
		c.mu.Unlock()
	}
}

// A holder that believes in a lock has it in the store for at least as long. That holds whatever
// leases were asked for, and in whatever order holds are re-entered, given back, handed on, shared
// and lent. It holds whatever requests get lost or come late, and no look costs anybody a lock.
func TestRandomHistoriesOfLeases(t *testing.T) {
	for _, limits := range []backend.Limits{{},
		{MinLease: 2 * time.Second, LeaseStep: time.Second}} {
		for seed := range histories() {
			t.Run(fmt.Sprint(limits.LeaseStep, " ", seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { randomLeases(t, uint64(seed), limits) })
			})
		}
	}
}

func randomLeases(t *testing.T, seed uint64, limits backend.Limits) {
	mem := membackend.New()
	view := mem.Open().(backend.Inspector)
	store := &moody{Backend: newScript(mem).with(limits), random: rand.New(rand.NewPCG(seed, 1))}
	var clients []*Client
	for range 2 {
		clients = append(clients,
			New(store, quiet(), WithLease([]time.Duration{3 * time.Second, time.Minute}[seed%2]),
				WithHandover(500*time.Millisecond)))
	}
	var all sync.WaitGroup
	over := make(chan struct{})
	for i := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 2+i))
		all.Go(func() {
			for range 8 {
				leaseHistory(t, r, clients[r.IntN(len(clients))])
			}
		})
	}
	var watch sync.WaitGroup
	watch.Go(func() {
		r := rand.New(rand.NewPCG(seed, 1000))
		for {
			select {
			case <-over:
				return
			case <-time.After(777 * time.Microsecond):
			}
			if beliefs(t, view, clients); t.Failed() {
				return
			}
			if r.IntN(5) == 0 {
				lookAt(clients[r.IntN(len(clients))],
					[]string{"x", "x1", "q", "rw", "s"}[r.IntN(5)])
			}
		}
	})
	all.Wait()
	close(over)
	watch.Wait()
	store.recover()
	time.Sleep(5 * time.Minute)
	for _, c := range clients {
		for _, l := range c.Losses() {
			if l.Reason != LossExpired && l.Reason != LossLease {
				t.Errorf("lost, though nobody has taken it: %+v", l)
			}
		}
		empty(t, c)
		c.Close()
	}
}

// leaseHistory has one owner lock one or two locks again and again, with leases of all sorts, and
// unlock them in between.
func leaseHistory(t *testing.T, r *rand.Rand, c *Client) {
	ctx := WithOwner(context.Background(), NewOwner())
	x := []string{"x", "x1", "x2", "x3"}[r.IntN(4)] // some contend, and some do a lot
	rw := c.RWLocker("rw")
	sides := [][]*Locker{{c.Locker(x)}, {c.Locker(x)}, {c.FencedLocker(x)}, {c.FairLocker("q")},
		{rw.Writer()}, {rw.Reader()}, {rw.Writer(), rw.Reader()},
		{c.Locker(x), rw.Reader()}}[r.IntN(8)]
	var held []*Locker
	for range 2 + r.IntN(16) {
		l := sides[r.IntN(len(sides))]
		switch {
		case len(held) > 0 && r.IntN(2) == 0:
			i := r.IntN(len(held))
			err := held[i].UnlockContext(ctx)
			if err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrUnavailable) {
				t.Errorf("unlock: %v", err)
			}
			held = slices.Delete(held, i, i+1)
		case r.IntN(20) == 0:
			somePermits(r, c)
		case r.IntN(20) == 0:
			someTogether(r, c)
		default:
			bounded, cancel := context.WithTimeout(ctx,
				time.Duration(1+r.IntN(2000))*time.Millisecond)
			if err := l.LockContext(bounded, someLease(r,
				backend.Kind(l.kind) != backend.Read)...); err == nil {
				held = append(held, l)
			}
			cancel()
		}
		time.Sleep(time.Duration(r.IntN([]int{10, 800, 800, 3000}[r.IntN(4)])) * time.Millisecond)
	}
	for _, l := range held {
		l.UnlockContext(ctx)
	}
}

func someLease(r *rand.Rand, keeps bool) (opts []AcquireOption) {
	d := []time.Duration{700 * time.Millisecond, time.Second, 2500 * time.Millisecond,
		3 * time.Second, 40 * time.Second}[r.IntN(5)]
	switch r.IntN(5) {
	case 0, 1:
		opts = append(opts, RenewedLease(d))
	case 2, 3:
		opts = append(opts, FixedLease(d))
	}
	if keeps && r.IntN(8) == 0 {
		opts = append(opts, AtLeast(time.Duration(1+r.IntN(5000))*time.Millisecond))
	}
	return opts
}

func somePermits(r *rand.Rand, c *Client) {
	ctx, cancel := context.WithTimeout(context.Background(),
		time.Duration(1+r.IntN(2000))*time.Millisecond)
	defer cancel()
	h, err := c.Semaphore("s", 3).Acquire(ctx, 1+r.IntN(2), someLease(r, true)...)
	if err != nil {
		return
	}
	time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
	h.Release(context.Background())
}

// someTogether has several locks at once, each with defaults of its own.
func someTogether(r *rand.Rand, c *Client) {
	ctx, cancel := context.WithTimeout(context.Background(),
		time.Duration(1+r.IntN(2000))*time.Millisecond)
	defer cancel()
	several := All(c.Locker("x").With(someLease(r, true)...),
		c.FairLocker("q").With(someLease(r, true)...),
		c.RWLocker("rw").Reader().With(someLease(r, false)...))
	h, err := several.Acquire(ctx)
	if err != nil {
		return
	}
	time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
	h.Release(context.Background())
}

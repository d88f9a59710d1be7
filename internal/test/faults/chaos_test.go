package faults_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
)

// chaos lets two groups contend during random faults of the other rows, which may overlap. A call
// may fail, but no two parties may ever believe at the same time that they hold the lock.
// Afterwards all locks must work again.
func chaos(l *lab) {
	const goroutines = 3
	random := seed(l.T)
	parties := []*party{l.proxied(l.short()), l.proxied(l.short())}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var turns atomic.Int64
	for _, p := range parties {
		for range goroutines {
			mine := rand.New(rand.NewPCG(random.Uint64(), 0))
			all.Go(func() {
				for ctx.Err() == nil {
					p.tryTurn(ctx, mine, &turns)
				}
			})
		}
	}
	for begin := time.Now(); time.Since(begin) < 5*time.Second; {
		parties[random.IntN(len(parties))].sometimes(random).strike(random)
		l.pass(time.Now().Add(rnd(random, 100*time.Millisecond)))
	}
	stop()
	all.Wait()
	l.Logf("%d turns", turns.Load())
	for _, p := range append(parties, l.direct()) {
		l.isFree(p)
		l.isFree(p.at("rw").as(backend.Write))
		for name, kind := range map[string]backend.Kind{
			"line":      backend.Fair,
			"semaphore": backend.Permits,
		} {
			if l.known([]backend.Kind{kind}) {
				l.isFree(p.at(name).as(kind))
			}
		}
	}
}

// sometimes returns the party at a random one of its locks. That may be a fenced lock, which it may
// also use as a plain one, a side of a read-write lock, a fair lock, or a semaphore.
func (p *party) sometimes(random *rand.Rand) *party {
	switch random.IntN(10) {
	case 0:
		return p
	case 1, 2:
		return p.as(backend.Fenced)
	case 3:
		return p.at("rw").as(backend.Write)
	case 4, 5:
		return p.at("line").as(backend.Fair)
	case 6, 7:
		return p.at("semaphore").as(backend.Permits)
	default:
		return p.at("rw").as(backend.Read)
	}
}

func rnd(r *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(limit)))
}

// tryTurn tries to acquire a random lock in a random way, and holds it for a moment.
func (p *party) tryTurn(ctx context.Context, random *rand.Rand, turns *atomic.Int64) {
	p = p.sometimes(random)
	ctx, cancel := context.WithTimeout(ctx, rnd(random, 2*p.lab.store.lease))
	defer cancel()
	var opts []dlock.AcquireOption
	if random.IntN(4) == 0 {
		opts = append(opts, dlock.FixedLease(p.lab.store.lease))
	}
	again, long := random.IntN(4) == 0, random.IntN(8) == 0
	// Whether a call fails depends on the faults just before it.
	_ = p.do(ctx, func(ctx context.Context) error {
		turns.Add(1)
		defer p.watch(ctx)()
		if again && p.kind != backend.Permits && p.locker().LockContext(ctx) == nil {
			defer p.locker().UnlockContext(ctx)
		}
		if within := p.as(backend.Read); again && p.kind == backend.Write &&
			within.locker().LockContext(ctx) == nil {
			defer within.locker().UnlockContext(ctx)
		}
		if long {
			<-ctx.Done()
		}
		return nil
	}, opts...)
}

// strike injects a random fault into a party, or into the server. Some faults only affect one kind
// of request.
func (p *party) strike(random *rand.Rand) {
	long := p.lab.store.lease * 5 / 4
	requests := p.requests(step(random.IntN(int(subscribe) + 1)))
	request := requests[random.IntN(len(requests))]
	switch random.IntN(6) {
	case 0:
		p.Cut()
	case 1:
		p.LoseReply(request)
	case 2:
		_, deliver := p.Hold(request)
		p.lab.pass(time.Now().Add(rnd(random, long)))
		deliver()
	case 3:
		d := faults.ToServer + faults.Direction(random.IntN(int(faults.Both)))
		p.Block(d)
		p.lab.pass(time.Now().Add(rnd(random, long)))
		if random.IntN(2) == 0 {
			p.Cut()
		}
		p.Unblock(d)
	case 4:
		p.SetDelay(rnd(random, 50*time.Millisecond))
		p.lab.pass(time.Now().Add(rnd(random, long)))
		p.SetDelay(0)
	case 5:
		p.lab.server.Stop()
		p.lab.pass(time.Now().Add(rnd(random, long)))
		p.lab.server.Cont()
	}
}

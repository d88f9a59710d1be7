package contract

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// loadCases: many at once, and what it costs.
var loadCases = []testCase{
	{"a counter guarded only by the lock", "no increment is lost, by several clients and goroutines, some cancelled at random", locker(counter)},
	{"histories under random faults", "the times at which two could rely on the lock never overlap, and in the end it is free", locker(histories)},
	{"many held locks", "cost no goroutine each, and are renewed in batches", locker(manyHolds)},
}

func counter(l *lab) {
	const clients, users, increments = 4, 8, 12
	count, want := 0, 0
	type user struct {
		call *call
		done int
	}
	var all []*user
	for c := range clients {
		p := l.process()
		shared := p.Locker("a")
		for u := range users {
			who := &user{}
			lk := shared
			if u%2 == 0 {
				lk = p.Locker("a")
			}
			add := func(context.Context) error {
				n := count
				runtime.Gosched()
				count = n + 1
				who.done++
				return nil
			}
			one := func(ctx context.Context) error {
				switch u % 4 {
				case 0:
					return lk.Do(ctx, add)
				case 1:
					lk.Lock()
					defer lk.Unlock()
				default:
					if err := lk.LockContext(ctx); err != nil {
						return err
					}
					defer lk.Unlock()
				}
				return add(ctx)
			}
			who.call = l.start(fmt.Sprintf("client %d, user %d", c, u), func() error {
				for range increments {
					ctx, cancel := context.WithCancel(l.ctx)
					if u%4 == 3 {
						cancel()
						ctx, cancel = context.WithTimeout(l.ctx, rand.N(20*time.Millisecond))
					}
					err := one(ctx)
					cancel()
					if err != nil && (u%4 != 3 || !errors.Is(err, context.DeadlineExceeded)) {
						return err
					}
				}
				return nil
			})
			all = append(all, who)
		}
	}
	for _, who := range all {
		who.call.ok()
		want += who.done
	}
	if count != want {
		l.Errorf("%d increments, and the counter is %d", want, count)
	}
	if least := clients * users * increments * 3 / 4; want < least {
		l.Errorf("%d increments, want at least %d", want, least)
	}
	l.eventuallyFree("a")
}

// histories lets several clients lock, re-enter and unlock while any step may fail in any way. Nothing here takes a
// lock away from its holder, so exclusion must hold by everyone's own clock.
func histories(l *lab) {
	const clients, users = 3, 3
	seed := rand.Uint64()
	l.Logf("seed %d", seed)
	lease := l.lease() / 2
	rounds, ends := 15, time.Now().Add(3*time.Second)
	if l.h.Virtual {
		ends = time.Now().Add(time.Hour)
	}
	names := []string{"a", "b"}
	inside := map[string]*beliefs{}
	for _, name := range names {
		inside[name] = &beliefs{begin: time.Now()}
	}
	var calls []*call
	var processes []*process
	for c := range clients {
		p := l.process(dlock.WithLease(l.legal(lease)))
		processes = append(processes, p)
		p.on(which{}, randomFault(rand.New(rand.NewPCG(seed, uint64(c))), p.faults, lease))
		for u := range users {
			who := fmt.Sprintf("client %d, user %d", c, u)
			r := rand.New(rand.NewPCG(seed, uint64(100+10*c+u)))
			calls = append(calls, l.start(who, func() error {
				for range rounds {
					if time.Now().After(ends) {
						return nil
					}
					name := names[r.IntN(len(names))]
					lk := p.Locker(name)
					ctx, cancel := context.WithTimeout(l.ctx, time.Duration(r.Int64N(int64(2*lease))))
					var opts []dlock.AcquireOption
					if r.IntN(3) == 0 {
						opts = append(opts, dlock.Lease(l.legal(time.Duration(r.Int64N(int64(lease))))))
					}
					stay := time.Duration(r.Int64N(int64(lease)))
					nest := r.IntN(2) == 0
					_ = lk.Do(ctx, func(in context.Context) error {
						inside[name].hold(who, func() bool { return in.Err() == nil }, func() {
							if nest {
								short, cancel := context.WithTimeout(in, lease/2)
								defer cancel()
								_ = lk.Do(short, func(context.Context) error { return nil }, opts...)
							}
							select {
							case <-in.Done():
							case <-time.After(stay):
							}
						})
						return nil
					}, opts...)
					cancel()
				}
				return nil
			}))
		}
	}
	for _, c := range calls {
		c.ok()
	}
	visits := 0
	for _, name := range names {
		if err := inside[name].check(); err != nil {
			l.Errorf("seed %d, lock %s: %v", seed, name, err)
		}
		visits += len(inside[name].spans)
	}
	if visits < 5 {
		l.Errorf("seed %d: only %d visits", seed, visits)
	}
	for _, p := range processes {
		for _, b := range p.broken() {
			l.Errorf("seed %d: %s", seed, b)
		}
		p.mu.Lock()
		p.rules = nil
		p.mu.Unlock()
	}
	for _, name := range names {
		l.eventuallyFree(name)
	}
	l.sleep(10 * time.Millisecond)
	for _, name := range names {
		l.eventuallyFree(name)
	}
}

// randomFault is any fault, or, mostly, none.
func randomFault(r *rand.Rand, f *faults, lease time.Duration) fault {
	return func(x *transit) error {
		f.mu.Lock()
		dice, pause := r.IntN(100), time.Duration(r.Int64N(int64(lease)))
		f.mu.Unlock()
		later := func() <-chan struct{} {
			open := make(chan struct{})
			time.AfterFunc(pause, func() { close(open) })
			return open
		}
		switch {
		case dice < 4:
			return replyLost(x)
		case dice < 8:
			return requestLost(x)
		case dice < 12:
			return notSent(x)
		case dice < 16:
			return hangs(later())(x)
		case dice < 20:
			return replyHangs(later())(x)
		case dice < 24:
			return late(later())(x)
		case dice < 27:
			return hangsPolitely(x)
		default:
			return x.carryOut(x.ctx)
		}
	}
}

func manyHolds(l *lab) {
	holds := 10_000
	lease := l.lease()
	if !l.h.Virtual {
		holds, lease = 300, l.legal(10*time.Second)
	}
	p := l.process(dlock.WithLease(lease))
	before := runtime.NumGoroutine()
	var lks []*dlock.Locker
	for i := range holds {
		lk := p.Locker(strconv.Itoa(i))
		l.lock(lk)
		lks = append(lks, lk)
	}
	if n := runtime.NumGoroutine() - before; n > holds/10 {
		l.Errorf("%d held locks have %d goroutines", holds, n)
	}
	l.eventually("all are renewed", func() bool {
		last := strconv.Itoa(holds - 1)
		return p.count(which{kind: renewStep}) >= holds && p.count(which{kind: renewStep, name: last}) > 0
	})
	if sizes := p.batchSizes(); len(sizes) > 0 {
		if n := p.count(which{kind: renewStep}); n < 20*len(sizes) {
			l.Errorf("%d renewals in %d batches", n, len(sizes))
		}
	}
	lost := 0
	for _, lk := range lks {
		if isOver(lk.Lost(l.ctx)) {
			lost++
		}
		if err := lk.UnlockContext(l.ctx); err != nil && !errors.Is(err, dlock.ErrLost) {
			l.Fatalf("UnlockContext: %v", err)
		}
	}
	if lost > 0 {
		l.Errorf("%d of %d locks were lost", lost, holds)
	}
}

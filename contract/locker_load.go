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

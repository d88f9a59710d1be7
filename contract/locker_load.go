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

// loadCases test many concurrent locks and callers, and the cost of locks.
var loadCases = []testCase{
	{name: "a counter guarded only by the lock",
		rule: "no increment is lost, by several clients and goroutines, some cancelled at random",
		tags: Essential | Exclusion | differs, run: locker(counter)},
	{name: "many held locks", rule: "cost no goroutine each, and are renewed in batches",
		tags: forReaders, run: locker(manyHolds)},
}

func counter(l *lab) {
	const clients, users, increments = 4, 8, 12
	count, want := 0, 0
	while := time.Hour
	if !l.h.Virtual {
		while = 5 * time.Second // the store may be slow, so accept fewer increments
	}
	begin := time.Now()
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
				for i := 0; i < increments && time.Since(begin) < while; i++ {
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
	if least := clients * users * increments * 3 / 4; want < least && time.Since(begin) < while {
		l.Errorf("%d increments, want at least %d", want, least)
	}
	l.eventuallyFree("a")
}

// manyHolds acquires many locks, but stops after a certain time, because some stores are slow and
// carry out steps one after another.
func manyHolds(l *lab) {
	const least = 20
	holds, while, lease := 10_000, time.Hour, l.lease()
	if !l.h.Virtual {
		holds, while, lease = 300, 1500*time.Millisecond, l.legal(10*time.Second)
	}
	p := l.process(dlock.WithLease(lease))
	before := runtime.NumGoroutine()
	var lks []*dlock.Locker
	for begin := time.Now(); len(lks) < least || len(lks) < holds && time.Since(begin) < while; {
		lk := p.Locker(strconv.Itoa(len(lks)))
		l.lock(lk)
		lks = append(lks, lk)
	}
	holds = len(lks)
	// a goroutine may exist for a moment while a hold is renewed
	l.eventually("held locks have no goroutine each", func() bool {
		return runtime.NumGoroutine()-before <= max(holds/10, least/2)
	})
	l.eventually("all are renewed", func() bool {
		last := strconv.Itoa(holds - 1)
		return p.count(which{kind: renewStep}) >= holds &&
			p.count(which{kind: renewStep, name: last}) > 0
	})
	if sizes := p.batchSizes(); len(sizes) > 0 {
		if n := p.count(which{kind: renewStep}); n < min(20, holds/10)*len(sizes) {
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

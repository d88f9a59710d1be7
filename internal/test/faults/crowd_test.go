package faults_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// seed returns random numbers for a test. If the test fails, it logs their seed.
func seed(t *testing.T) *rand.Rand {
	n := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the seed was %d", n)
		}
	})
	return rand.New(rand.NewPCG(n, 0))
}

// A thousand callers give up at random moments, before, while and after they get the lock.
func cancellations(l *lab) {
	const goroutines, turns = 20, 50
	random := seed(l.T)
	parties := []*party{l.direct(), l.direct()}
	var all sync.WaitGroup
	for i := range goroutines {
		p := parties[i%len(parties)]
		mine := rand.New(rand.NewPCG(random.Uint64(), 0))
		all.Go(func() {
			for range turns {
				ctx, cancel := context.WithCancel(context.Background())
				if mine.IntN(10) > 0 {
					timer := time.AfterFunc(time.Duration(mine.Int64N(int64(20*time.Millisecond))),
						cancel)
					defer timer.Stop()
				} else {
					cancel()
				}
				err := p.locker().Do(ctx, p.turn)
				if err != nil && !errors.Is(err, context.Canceled) {
					l.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	for _, p := range parties {
		l.isFree(p)
	}
	l.isEmpty()
	ok, err := parties[0].locker().TryLock(l.Context())
	must(l.T, err)
	if !ok {
		l.Fatal("the lock isn't free")
	}
	parties[0].client.Close() // its lock must expire
}

// turn holds the lock for a moment.
func (p *party) turn(ctx context.Context) error {
	defer p.watch(ctx)()
	time.Sleep(time.Millisecond)
	return nil
}

// Two clients get the same id by mistake, and each has many goroutines.
func sameID(l *lab) {
	const clients, goroutines, turns = 2, 4, 10
	var all sync.WaitGroup
	for range clients {
		p := l.direct(dlock.WithClientID("host"))
		for range goroutines {
			all.Go(func() {
				for range turns {
					if err := p.locker().Do(l.Context(), p.turn); err != nil {
						l.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
}

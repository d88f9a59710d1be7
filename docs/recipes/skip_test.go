package recipes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

func TestAStoreThatIsDownIsTakenForASweepElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cable := &line{Backend: membackend.New()}
		cable.down.Store(true)
		lock := replicaOn(t, cable).Locker("lock:sweep")
		var swept gauge
		for range 24 {
			must(t, sweepWrong(t.Context(), lock, func(context.Context) error {
				swept.around(func() {})
				return nil
			}))
			time.Sleep(time.Hour)
		}
		if n := swept.entered.Load(); n != 0 {
			t.Errorf("without its store it swept %d times", n)
		}
	})
}

// A lease of ten minutes, and a sweep of 15.
func TestALeaseThatIsShorterThanTheSweep(t *testing.T) {
	for name, stubborn := range map[string]bool{
		"a sweep that looks at its context": false,
		"a sweep that doesn't":              true,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				var sweeps gauge
				var ended atomic.Int32
				sweep := func(ctx context.Context) error {
					sweeps.around(func() {
						for range 15 {
							time.Sleep(time.Minute)
							if !stubborn && ctx.Err() != nil {
								return
							}
						}
						ended.Add(1)
					})
					return context.Cause(ctx)
				}
				var all sync.WaitGroup
				for range 3 { // replicas
					lock := replicaOn(t, store).Locker("lock:sweep")
					all.Go(func() {
						for range 60 { // minutes
							if err := sweepWrongToo(t.Context(), lock, sweep); err != nil &&
								!errors.Is(err, dlock.ErrHeld) && !errors.Is(err, dlock.ErrLost) {
								t.Error(err)
							}
							time.Sleep(time.Minute)
						}
					})
				}
				all.Wait()
				if stubborn && sweeps.most.Load() < 2 {
					t.Error("never were there two sweeps at the same time")
				}
				if !stubborn && ended.Load() != 0 {
					t.Errorf("of %d sweeps %d came to their end", sweeps.entered.Load(),
						ended.Load())
				}
			})
		})
	}
}

func TestASweepIsSkippedWhileAnotherRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var sweeps gauge
		var all sync.WaitGroup
		for range 3 {
			lock := replicaOn(t, store).Locker("lock:sweep")
			all.Go(func() {
				for range 10 {
					swept, err := sweepUnlessRunning(t.Context(), lock, func(
						ctx context.Context,
					) error {
						sweeps.around(func() { time.Sleep(15 * time.Minute) })
						return context.Cause(ctx)
					})
					if err != nil {
						t.Error(err)
					}
					if !swept {
						time.Sleep(time.Minute)
					}
				}
			})
		}
		all.Wait()
		if most, n := sweeps.most.Load(), sweeps.left.Load(); most != 1 || n == 0 {
			t.Errorf("%d sweeps, %d at the same time", n, most)
		}
	})
}

func TestASweepThatIsNotMadeSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cable := &line{Backend: membackend.New()}
		client := replicaOn(t, cable)
		never := func(context.Context) error { t.Error("it swept"); return nil }
		cable.down.Store(true)
		if swept, err := sweepUnlessRunning(t.Context(), client.Locker("lock:sweep"),
			never); swept || !errors.Is(err, dlock.ErrUnavailable) {
			t.Errorf("the store is down: %v, %v", swept, err)
		}
		cable.down.Store(false)
		// A sweep that fails since something else is held has not been skipped.
		swept, err := sweepUnlessRunning(t.Context(), client.Locker("lock:sweep"), func(
			ctx context.Context,
		) error {
			other := client.Locker("lock:disk")
			must(t, other.LockContext(context.Background()))
			defer other.Unlock()
			return client.Locker("lock:disk").Do(ctx, never, dlock.Wait(0))
		})
		if !swept || !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("the sweep failed: %v, %v", swept, err)
		}
	})
}

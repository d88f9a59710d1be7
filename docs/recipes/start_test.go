package recipes

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// A watched poller's polling can be counted. It takes three seconds to end.
type watchedPoller struct {
	*poller
	client   *dlock.Client
	polling  atomic.Int32
	failures chan error
}

func pollerOn(t *testing.T, store *membackend.Backend) *watchedPoller {
	w := &watchedPoller{client: replicaOn(t, store), failures: make(chan error, 1)}
	w.poller = &poller{
		lock: w.client.Locker("lock:poller"),
		poll: func(ctx context.Context) error {
			w.polling.Add(1)
			<-ctx.Done()
			time.Sleep(3 * time.Second)
			w.polling.Add(-1)
			return nil
		},
		failed: func(err error) { w.failures <- err },
	}
	return w
}

// starting is what a framework gives to Start: it ends soon after that has returned.
func starting(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), 15*time.Second)
}

func TestAStartWhoseContextIsThatOfTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pollerOn(t, membackend.New())
		ctx, started := starting(t)
		if err := p.startWrong(ctx); err != nil {
			t.Fatal(err)
		}
		started()
		time.Sleep(time.Hour)
		if locked, err := p.lock.IsLocked(t.Context()); p.polling.Load() != 0 || !locked ||
			err != nil {
			t.Errorf("%d poll; locked: %v, %v", p.polling.Load(), locked, err)
		}
	})
}

func TestAStopThatReleasesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		one, other := pollerOn(t, store), pollerOn(t, store)
		for _, p := range []*watchedPoller{one, other} {
			if err := p.startWrong(t.Context()); err != nil {
				t.Fatal(err)
			}
			if p == one {
				synctest.Wait()
				if err := p.stopWrong(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		synctest.Wait()
		if one.polling.Load()+other.polling.Load() != 2 {
			t.Errorf("%d and %d poll", one.polling.Load(), other.polling.Load())
		}
		if err := other.stopWrong(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}

func TestStartAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		one, other := pollerOn(t, store), pollerOn(t, store)
		ctx, started := starting(t)
		if err := one.Start(ctx); err != nil {
			t.Fatal(err)
		}
		started()
		ctx, started = starting(t)
		if err := other.Start(ctx); !errors.Is(err, context.DeadlineExceeded) ||
			!errors.Is(err, dlock.ErrHeld) {
			t.Errorf("the other's Start: %v", err)
		}
		started()
		time.Sleep(time.Hour)
		if one.polling.Load() != 1 {
			t.Error("nobody polls")
		}
		stopped := make(chan error)
		go func() { stopped <- one.Stop(t.Context()) }()
		if err := other.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if one.polling.Load() != 0 {
			t.Error("the other was let in while one still polled")
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if err := other.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestStopThatIsInAHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pollerOn(t, membackend.New())
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		synctest.Wait()
		if err := p.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if locked, err := p.lock.IsLocked(t.Context()); !locked || err != nil {
			t.Errorf("locked while it polls: %v, %v", locked, err)
		}
		time.Sleep(time.Minute)
		if locked, err := p.lock.IsLocked(t.Context()); locked || err != nil {
			t.Errorf("locked: %v, %v", locked, err)
		}
	})
}

func TestAPollerThatLosesItsLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pollerOn(t, membackend.New())
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.lock.ForceUnlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-p.failures; !errors.Is(err, dlock.ErrLost) {
			t.Error(err)
		}
		if err := p.Stop(t.Context()); !errors.Is(err, dlock.ErrLost) {
			t.Error(err)
		}
	})
}

// A context that ends as the lock is acquired leaves nothing behind.
func TestAStartThatIsCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pollerOn(t, membackend.New())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			if err := p.Start(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			synctest.Wait()
			if locked, err := p.lock.IsLocked(t.Context()); locked || err != nil {
				t.Errorf("locked: %v, %v", locked, err)
			}
		}
	})
}

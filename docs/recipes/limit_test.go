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

// A slow service takes a second for a call, and counts how many it has at once.
type slow struct{ now, most, served atomic.Int32 }

func (s *slow) call(ctx context.Context) error {
	n := s.now.Add(1)
	defer s.now.Add(-1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	s.served.Add(1)
	return sleep(ctx, time.Second)
}

// fromReplicas makes 60 calls in each of three replicas.
func fromReplicas(t *testing.T, replica func() func(context.Context) error) {
	t.Helper()
	var all sync.WaitGroup
	for range 3 {
		call := replica()
		for range 60 {
			all.Go(func() {
				if err := call(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
}

func TestALimiterInEachProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var service slow
		fromReplicas(t, func() func(context.Context) error {
			l := make(limiter, 10)
			return func(ctx context.Context) error { return l.callWrong(ctx, service.call) }
		})
		if most := service.most.Load(); most != 30 {
			t.Errorf("%d at once", most)
		}
	})
}

func partnerOf(client *dlock.Client) *partner {
	return &partner{client.Semaphore("slots:partner", 10), make(chan struct{}, 100)}
}

func TestALimitForAllReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var service slow
		store := membackend.New()
		fromReplicas(t, func() func(context.Context) error {
			p := partnerOf(replicaOn(t, store))
			return func(ctx context.Context) error {
				for {
					if err := p.call(ctx, service.call); !errors.Is(err, dlock.ErrNotAcquired) {
						return err
					}
				}
			}
		})
		if most, served := service.most.Load(), service.served.Load(); most != 10 || served != 180 {
			t.Errorf("%d at once, %d in all", most, served)
		}
	})
}

// whileTenFail returns how long a call takes while ten others are told to try again, ten times
// each.
func whileTenFail(
	t *testing.T, call func(ctx context.Context, send func(context.Context) error) error,
) time.Duration {
	var all sync.WaitGroup
	defer all.Wait()
	for range 10 {
		tries := 0
		failing := func(context.Context) error {
			if tries++; tries < 10 {
				return errTryAgain
			}
			return nil
		}
		all.Go(func() {
			if err := call(t.Context(), failing); err != nil {
				t.Error(err)
			}
		})
	}
	synctest.Wait()
	began := time.Now()
	if err := call(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	return time.Since(began)
}

func TestPermitsThatAreHeldAcrossRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := replicaOn(t, membackend.New()).Semaphore("slots:partner", 10)
		took := whileTenFail(t, func(ctx context.Context, send func(context.Context) error) error {
			return callWithPermitWrong(ctx, slots, send)
		})
		if took < 8*time.Minute {
			t.Errorf("a call that nothing is wrong with took %v", took)
		}
	})
}

func TestPermitsAreGivenBackBetweenRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if took := whileTenFail(t,
			partnerOf(replicaOn(t, membackend.New())).call); took > time.Second {
			t.Errorf("a call that nothing is wrong with took %v", took)
		}
	})
}

func TestTooManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := partnerOf(replicaOn(t, membackend.New()))
		var served, timeout, busy atomic.Int32
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				switch err := p.call(t.Context(), func(ctx context.Context) error {
					return sleep(ctx, time.Minute)
				}); {
				case errors.Is(err, context.DeadlineExceeded): // after ten seconds, with a permit
					served.Add(1)
				case errors.Is(err, dlock.ErrHeld):
					timeout.Add(1)
				case errors.Is(err, errBusy):
					busy.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if s, o, b := served.Load(), timeout.Load(), busy.Load(); s != 10 || b < 90 ||
			s+o+b != 200 {
			t.Errorf("served %d, out of time %d, refused at once %d", s, o, b)
		}
	})
}

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

// A shelf is a cache in memory. One that is small keeps nothing.
type shelf struct {
	mu    sync.Mutex
	value []byte
	ends  time.Time
	small bool
}

func (s *shelf) Get(context.Context, string) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value, time.Now().Before(s.ends), nil
}

func (s *shelf) Set(_ context.Context, _ string, value []byte, ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.small {
		s.value, s.ends = value, time.Now().Add(ttl)
	}
	return nil
}

// fetches has ten replicas want the rates ten times, every half minute, and returns how often they
// were fetched, and how many calls failed. The first fetch fails.
func fetches(
	t *testing.T, c *shelf, rates func(
		context.Context, *dlock.Client, func(context.Context) ([]byte, error),
	) ([]byte, error),
) (fetched, failed int32) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		var all sync.WaitGroup
		var n, bad atomic.Int32
		for range 10 {
			client := dlock.New(store)
			defer client.Close()
			all.Go(func() {
				for range 10 {
					value, err := rates(t.Context(), client, func(context.Context) ([]byte, error) {
						first := n.Add(1) == 1
						time.Sleep(2 * time.Second)
						if first {
							return nil, errors.New("no answer")
						}
						return []byte("1.07"), nil
					})
					if err != nil {
						bad.Add(1)
					} else if string(value) != "1.07" {
						t.Errorf("the rates are %q", value)
					}
					time.Sleep(30 * time.Second)
				}
			})
		}
		all.Wait()
		fetched, failed = n.Load(), bad.Load()
	})
	return fetched, failed
}

func TestRatesFetchedByEveryReplica(t *testing.T) {
	var c shelf
	fetched, _ := fetches(t, &c, func(
		ctx context.Context, _ *dlock.Client, fetch func(context.Context) ([]byte, error),
	) ([]byte, error) {
		return ratesWrong(ctx, &c, fetch)
	})
	if fetched < 40 {
		t.Errorf("fetched %d times; want nearly ten times too often", fetched)
	}
}

func TestRatesFetchedOnce(t *testing.T) {
	var c shelf
	fetched, failed := fetches(t, &c, func(
		ctx context.Context, client *dlock.Client, fetch func(context.Context) ([]byte, error),
	) ([]byte, error) {
		return ratesOnce(ctx, client, &c, fetch)
	})
	// Five minutes, and a minute is as long as they are good; and the one that fails.
	if fetched > 7 || failed != 1 {
		t.Errorf("fetched %d times, %d calls failed; want 7 at most, and 1", fetched, failed)
	}
}

// A cache that keeps nothing costs a fetch each, and no more than that.
func TestRatesWithoutRoom(t *testing.T) {
	c := shelf{small: true}
	_, failed := fetches(t, &c, func(
		ctx context.Context, client *dlock.Client, fetch func(context.Context) ([]byte, error),
	) ([]byte, error) {
		return ratesOnce(ctx, client, &c, fetch)
	})
	if failed > 1 {
		t.Errorf("%d calls failed", failed)
	}
}

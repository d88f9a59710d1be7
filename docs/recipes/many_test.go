package recipes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// cross has two processes transfer in opposite directions, and returns their errors. They have a
// minute. Requests take a millisecond, so that each has its first lock before either asks for its
// second.
func cross(
	t *testing.T, with func(
		context.Context, *dlock.Client, []string, func(context.Context) error,
	) error,
) (errs [2]error) {
	store := membackend.New()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for i, ids := range [][]string{{"ann", "bob"}, {"bob", "ann"}} {
		client := replicaOn(t, &line{Backend: store, takes: time.Millisecond})
		all.Go(func() {
			errs[i] = with(ctx, client, ids, func(ctx context.Context) error {
				return sleep(ctx, time.Second)
			})
		})
	}
	all.Wait()
	return errs
}

func TestLocksOneByOneStandStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range cross(t, withAllWrong) {
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dlock.ErrHeld) {
				t.Errorf("after a minute: %v", err)
			}
		}
	})
}

func TestLocksTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range cross(t, withAll) {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

func TestTransferToOneself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := withAll(t.Context(), replicaOn(t, membackend.New()), []string{"ann", "ann"},
			func(context.Context) error { return nil })
		if err != nil {
			t.Error(err)
		}
	})
}

func accounts(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}

func TestManyInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, ids := replicaOn(t, membackend.New()), accounts(1050)
		var done []string
		most := 0
		err := inBatches(t.Context(), client, ids, func(ctx context.Context, batch []string) error {
			done = append(done, batch...)
			most = max(most, len(client.Holds()))
			return ctx.Err()
		})
		if err != nil || !slices.Equal(done, ids) || most != 100 {
			t.Errorf("%d done, %d locks at once, %v", len(done), most, err)
		}
	})
}

func TestWhatIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		elsewhere := replicaOn(t, store).Locker("lock:accounts:1")
		elsewhere.Lock()
		client := replicaOn(t, store)
		var done []string
		err := onWhatIsFree(t.Context(), client, accounts(3), func(
			_ context.Context, id string,
		) error {
			done = append(done, id)
			return nil
		})
		if err != nil || !slices.Equal(done, []string{"0", "2"}) {
			t.Errorf("done %v, %v", done, err)
		}
		err = onWhatIsFree(t.Context(), client, accounts(1), func(
			ctx context.Context, _ string,
		) error {
			return client.Locker("lock:accounts:1").LockContext(ctx, dlock.Wait(0))
		})
		if !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("work that met a lock: %v", err)
		}
		elsewhere.Unlock()
	})
}

// Ten thousand locks are held for a while, and renewed.
func TestTenThousandLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := replicaOn(t, membackend.New())
		err := withAll(t.Context(), client, accounts(10_000), func(ctx context.Context) error {
			return sleep(ctx, 30*time.Second)
		})
		if err != nil {
			t.Error(err)
		}
		if s := client.Stats(); s.Lost != 0 || s.Renewed < 20_000 {
			t.Errorf("%d lost, %d renewals", s.Lost, s.Renewed)
		}
	})
}

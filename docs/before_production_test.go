package docs_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlocktest"
	"github.com/seed951563bd/distsync/redisbackend"
)

func status(err error) int {
	switch {
	case errors.Is(err, dlock.ErrLost): // lost in the middle: another may have begun
		return http.StatusInternalServerError
	case errors.Is(err, dlock.ErrHeld): // another has it: skip, or come back later
		return http.StatusLocked
	case errors.Is(err, dlock.ErrUnavailable): // the store doesn't answer: nothing is known
		return http.StatusServiceUnavailable
	case err != nil: // what your function returned
		return http.StatusInternalServerError
	}
	return http.StatusOK
}

// withStore runs a test of two clients, in virtual time, whose store has faults.
func withStore(t *testing.T, run func(t *testing.T, store *dlocktest.Store, one, two *dlock.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		one, two := dlock.New(store), dlock.New(store)
		defer one.Close()
		defer two.Close()
		run(t, store, one, two)
	})
}

// Each error of a Do is told from the others as the page does it.
func TestBeforeProductionErrors(t *testing.T) {
	withStore(t, func(t *testing.T, store *dlocktest.Store, one, two *dlock.Client) {
		do := func(fn func(context.Context) error) int {
			l := one.Locker("lock:orders:42")
			return status(l.Do(t.Context(), fn, dlock.Wait(time.Second)))
		}
		nothing := func(context.Context) error { return nil }
		expect := func(when string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %d, want %d", when, got, want)
			}
		}

		expect("all is well", do(nothing), http.StatusOK)
		expect("the function fails", do(func(context.Context) error {
			return errors.New("no stock")
		}), http.StatusInternalServerError)
		expect("it is lost", do(func(ctx context.Context) error {
			store.Lose("lock:orders:42")
			<-ctx.Done()
			return nil
		}), http.StatusInternalServerError)

		h, err := two.Locker("lock:orders:42").Acquire(t.Context())
		check(t, err)
		expect("another has it", do(nothing), http.StatusLocked)
		check(t, h.Release(t.Context()))

		store.Fail(-1, nil)
		expect("the store is down", do(nothing), http.StatusServiceUnavailable)
		store.Recover()

		err = one.Locker("lock:orders:42").Do(t.Context(), func(context.Context) error {
			store.Fail(-1, nil)
			return nil
		})
		store.Recover()
		at, ok := errors.AsType[*dlock.Error](err)
		if !ok || at.Op != "unlock" || !errors.Is(err, dlock.ErrUnavailable) {
			t.Errorf("an unlock that wasn't confirmed: %v", err)
		}
		time.Sleep(time.Minute) // it goes on in the background
	})
}

var ship = func(context.Context) error { return nil }

func handle(ctx context.Context, client *dlock.Client) (ran bool, err error) {
	deadline, _ := ctx.Deadline() // that of the call
	lease := dlock.FixedLease(time.Until(deadline) + time.Second)
	return client.Locker("lock:orders:42").TryDo(ctx, ship, lease)
}

// A function that is frozen in the middle of a call gives way when the call's time is over.
func TestBeforeProductionFrozenFunction(t *testing.T) {
	withStore(t, func(t *testing.T, _ *dlocktest.Store, one, two *dlock.Client) {
		thaw, began := make(chan struct{}), time.Now()
		defer func(usual func(context.Context) error) { ship = usual }(ship)
		ship = func(context.Context) error { <-thaw; return nil }
		ended := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			ran, err := handle(ctx, one)
			if !ran {
				t.Error("the function did not run")
			}
			ended <- err
		}()
		synctest.Wait() // it has the lock
		h, err := two.Locker("lock:orders:42").Acquire(t.Context())
		check(t, err)
		if waited := time.Since(began); waited < 15*time.Second || waited > 17*time.Second {
			t.Errorf("the next call got the lock after %v", waited)
		}
		close(thaw)
		if err := <-ended; !errors.Is(err, dlock.ErrLost) {
			t.Errorf("the call that was frozen: %v", err)
		}
		check(t, h.Release(t.Context()))
	})
}

// With the lease of the page a lock outlives a breakpoint of half an hour.
func TestBeforeProductionBreakpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Setenv("DEBUGGING", "1")
		store := dlocktest.New(t)

		lease := dlock.DefaultLease
		if os.Getenv("DEBUGGING") != "" {
			lease = time.Hour
		}
		client := dlock.New(store, dlock.WithLease(lease))

		defer client.Close()
		h, err := client.Locker("lock:orders:42").Acquire(t.Context())
		check(t, err)
		store.PauseRenewals()
		time.Sleep(30 * time.Minute)
		check(t, h.Err(), h.Release(t.Context()))
	})
}

// Close ends waits and holds, and releases nothing.
func TestBeforeProductionClose(t *testing.T) {
	withStore(t, func(t *testing.T, _ *dlocktest.Store, one, two *dlock.Client) {
		h, err := one.Locker("lock:orders:42").Acquire(t.Context())
		check(t, err)
		wait := make(chan error)
		go func() { wait <- one.Locker("lock:orders:42").LockContext(t.Context()) }()
		synctest.Wait()

		check(t, one.Close())

		if err := <-wait; !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("the wait ended with %v", err)
		}
		if <-h.Context().Done(); !errors.Is(context.Cause(h.Context()), dlock.ErrClosed) {
			t.Errorf("the hold's context ended with %v", context.Cause(h.Context()))
		}
		if ran, err := two.Locker("lock:orders:42").TryDo(t.Context(), ship); ran || err != nil {
			t.Errorf("another got in at once: %t, %v", ran, err)
		}
		check(t, two.Locker("lock:orders:42").Do(t.Context(), ship)) // when the lease is over
	})

	shutDown := func(ctx context.Context, server *http.Server, client *dlock.Client, rdb *redis.Client) error {
		return errors.Join(server.Shutdown(ctx), client.Close(), rdb.Close()) // in this order
	}
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"})
	check(t, shutDown(t.Context(), new(http.Server), dlock.New(redisbackend.New(rdb)), rdb))
}

package dlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlocktest"
)

// printer takes the place of a test's *testing.T, which an example doesn't have. It prints the
// errors.
type printer struct{ recorder }

var _ testing.TB = (*printer)(nil)

func (p *printer) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// handleShip is the code under test. Its status says whether another client holds the order's lock,
// or the store doesn't answer.
func handleShip(client *dlock.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := client.Locker("orders:42").Do(r.Context(), func(ctx context.Context) error {
			return nil // ship it
		}, dlock.Wait(0))
		switch {
		case errors.Is(err, dlock.ErrHeld):
			w.WriteHeader(http.StatusLocked)
		case errors.Is(err, dlock.ErrUnavailable):
			w.WriteHeader(http.StatusServiceUnavailable)
		case err != nil:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}
}

// A handler answers 423 while another client holds the lock, and 503 when the store is down.
func Example() {
	t := new(printer) // in a test: its *testing.T
	defer t.end()
	store := dlocktest.New(t)
	client, other := dlock.New(store), dlock.New(store) // two processes
	defer client.Close()
	defer other.Close()

	answer := func() int {
		w := httptest.NewRecorder()
		handleShip(client)(w, httptest.NewRequest("POST", "/orders/42/ship", nil))
		return w.Code
	}

	l := other.Locker("orders:42")
	l.Lock()
	fmt.Println("held:", answer())
	l.Unlock()
	fmt.Println("free:", answer())

	store.Fail(-1, nil)
	fmt.Println("down:", answer())
	store.Recover()
	fmt.Println("up again:", answer())
	// Output:
	// held: 423
	// free: 200
	// down: 503
	// up again: 200
}

// The code forgets to unlock, and the test fails at its end.
func ExampleNew() {
	t := new(printer)
	defer t.end()
	store := dlocktest.New(t)
	client := dlock.New(store, dlock.WithClientID("web-1"))
	t.Cleanup(func() { client.Close() })

	h, err := client.Locker("orders:42").Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
	}
	_ = h // and no h.Release(ctx)
	// Output:
	// dlocktest: at the end of the test the lock "orders:42" is held by client "web-1", which is closed
}

// A job stops when its lock is lost.
func ExampleStore_Lose() {
	t := new(printer)
	defer t.end()
	store := dlocktest.New(t)
	// or 30 s, in a bubble of testing/synctest
	client := dlock.New(store, dlock.WithLease(300*time.Millisecond))
	defer client.Close()

	works, done := make(chan bool), make(chan error)
	go func() {
		done <- client.Locker("import").Do(context.Background(), func(ctx context.Context) error {
			close(works)
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	<-works
	store.Lose("import")
	fmt.Println("lost:", errors.Is(<-done, dlock.ErrLost))
	// Output: lost: true
}

func ExampleStore_Fail() {
	t := new(printer)
	defer t.end()
	store := dlocktest.New(t)
	client := dlock.New(store)
	defer client.Close()

	ctx := context.Background()
	l := client.Locker("orders:42")
	store.Fail(1, errors.New("connection refused"))
	_, err := l.TryLock(ctx)
	fmt.Println(err)
	ok, err := l.TryLock(ctx)
	fmt.Println(ok, err)
	l.Unlock()
	// Output:
	// dlock: trylock "orders:42": store unavailable: connection refused
	// true <nil>
}

// A call returns when its context ends, although the store hangs. The error says that the store is
// the cause.
func ExampleStore_Hang() {
	t := new(printer)
	defer t.end()
	store := dlocktest.New(t)
	client := dlock.New(store)
	defer client.Close()

	store.Hang(-1)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	err := client.Locker("orders:42").LockContext(ctx)
	fmt.Println(errors.Is(err, context.DeadlineExceeded), errors.Is(err, dlock.ErrUnavailable))
	// Output: true true
}

// A holder that is cut off from the store stops when its lease ends, and the next waiter gets the
// lock.
func ExampleStore_PauseRenewals() {
	t := new(printer)
	defer t.end()
	store := dlocktest.New(t)
	// or 30 s, in a bubble of testing/synctest
	client := dlock.New(store, dlock.WithLease(100*time.Millisecond))
	defer client.Close()
	other := dlock.New(store)
	defer other.Close()

	ctx := context.Background()
	h, err := client.Locker("import").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
	}
	store.PauseRenewals()
	<-h.Context().Done()
	fmt.Println(errors.Is(h.Err(), dlock.ErrLost))

	err = other.Locker("import").Do(ctx, func(context.Context) error { return nil })
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}

// A store that has lost its data grants the lock to a second client. The first finds out at its
// next renewal.
func ExampleStore_Wipe() {
	t := new(printer)
	defer t.end()
	store := dlocktest.New(t)
	client := dlock.New(store, dlock.WithLease(300*time.Millisecond))
	defer client.Close()
	other := dlock.New(store)
	defer other.Close()

	ctx := context.Background()
	first, err := client.Locker("import").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
	}
	store.Wipe()
	second, err := other.Locker("import").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
	}
	<-first.Lost()
	fmt.Println(errors.Is(first.Err(), dlock.ErrLost))
	fmt.Println(second.Release(ctx))
	// Output:
	// true
	// <nil>
}

func ExampleStore_Held() {
	t := new(printer)
	defer t.end()
	store := dlocktest.New(t)
	client := dlock.New(store)
	defer client.Close()

	l := client.Locker("import")
	l.Lock()
	store.Held(t, "import")
	l.Unlock()
	store.Held(t, "import")
	// Output: dlocktest: Held: nobody has the lock "import"
}

func ExampleStore_Free() {
	t := new(printer)
	defer t.end()
	store := dlocktest.New(t)
	client := dlock.New(store, dlock.WithClientID("web-1"))
	defer client.Close()

	rw := client.RWLocker("prices")
	rw.RLock()
	store.Free(t, "prices")
	rw.RUnlock()
	store.Free(t, "prices")
	// Output: dlocktest: Free: the lock "prices" is held by client "web-1" (read)
}

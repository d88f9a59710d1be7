package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// A Locker is a sync.Locker: code that was written for a sync.Mutex can be given one, and then
// excludes not only this process's goroutines, but whoever uses the same store.
func Example() {
	client := dlock.New(membackend.New()) // in production redisbackend.New(rdb), for example
	defer client.Close()

	balance := 0
	var l sync.Locker = client.Locker("account:42")
	var deposits sync.WaitGroup
	for range 100 {
		deposits.Go(func() {
			l.Lock()
			defer l.Unlock()
			balance++
		})
	}
	deposits.Wait()
	fmt.Println(balance)
	// Output: 100
}

func ExampleNew() {
	client := dlock.New(membackend.New(),
		dlock.WithLease(10*time.Second),    // a crashed holder keeps others out for so long
		dlock.WithClientID("billing-7f9c"), // shown in the store as the holder
		dlock.WithLogger(slog.Default()),   // gets what no call can return
	)
	defer client.Close() // does not unlock what is still locked: that ends with its lease

	fmt.Println(client.ID())
	// Output: billing-7f9c
}

func ExampleLocker_TryLock() {
	store := membackend.New()
	client, other := dlock.New(store), dlock.New(store) // as two processes
	defer client.Close()
	defer other.Close()
	ctx := context.Background()

	nightly := client.Locker("nightly-report")
	ok, err := nightly.TryLock(ctx)
	fmt.Println(ok, err)

	// False without an error means that another has it, and nothing else.
	ok, err = other.Locker("nightly-report").TryLock(ctx)
	fmt.Println(ok, err)

	if err := nightly.UnlockContext(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

// With Wait, TryLock waits for a while; with FixedLease, the lock is not renewed and ends by
// itself.
func ExampleLocker_TryLock_waitAndLease() {
	store := membackend.New()
	client, other := dlock.New(store), dlock.New(store)
	defer client.Close()
	defer other.Close()
	ctx := context.Background()

	ok, err := client.Locker("import").TryLock(ctx, dlock.Wait(time.Second),
		dlock.FixedLease(50*time.Millisecond))
	fmt.Println(ok, err)

	// Nobody unlocks it, and 50 ms later it is free.
	ok, err = other.Locker("import").TryLock(ctx, dlock.Wait(time.Minute))
	fmt.Println(ok, err)
	// Output:
	// true <nil>
	// true <nil>
}

// LockContext waits as long as its context allows. With Wait it waits no longer than that, and says
// so with an error of its own.
func ExampleLocker_LockContext() {
	client := dlock.New(membackend.New())
	defer client.Close()
	l := client.Locker("orders:42")
	l.Lock() // somebody is inside

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err := l.LockContext(ctx)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))

	err = l.LockContext(context.Background(), dlock.Wait(10*time.Millisecond))
	fmt.Println(errors.Is(err, dlock.ErrNotAcquired))

	l.Unlock()
	err = l.LockContext(context.Background())
	fmt.Println(err)
	// Output:
	// true
	// true
	// <nil>
}

// Do locks, runs the function and unlocks. The function is given a context that ends when the lock
// is lost: whatever it passes that to stops too.
func ExampleLocker_Do() {
	client := dlock.New(membackend.New())
	defer client.Close()
	l := client.Locker("orders:42")

	err := l.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("shipping the order")
		return nil
	})
	fmt.Println(err)

	// An operator frees the lock while work is going on. A lease that runs out because the store
	// can't be reached has the same effect.
	err = l.Do(context.Background(), func(ctx context.Context) error {
		if _, err := l.ForceUnlock(ctx); err != nil {
			return err
		}
		<-ctx.Done() // a query or a request with ctx would end here
		fmt.Println(errors.Is(context.Cause(ctx), dlock.ErrLost))
		return nil
	})
	fmt.Println(errors.Is(err, dlock.ErrLost)) // even though the function returned nil
	// Output:
	// shipping the order
	// <nil>
	// true
	// true
}

// A function that takes a lock can be called by one that has it: the context of Do says so. For
// locks of another name it says nothing.
func ExampleLocker_Do_nested() {
	client := dlock.New(membackend.New())
	defer client.Close()
	l := client.Locker("stock")

	remove := func(ctx context.Context, item string) error {
		return l.Do(ctx, func(ctx context.Context) error {
			n, err := l.HoldCount(ctx)
			fmt.Println("removing", item, "holds:", n)
			return err
		})
	}
	err := l.Do(context.Background(), func(ctx context.Context) error {
		return errors.Join(remove(ctx, "bolt"), remove(ctx, "nut"))
	})
	fmt.Println(err)
	// Output:
	// removing bolt holds: 2
	// removing nut holds: 2
	// <nil>
}

func ExampleLocker_TryDo() {
	client := dlock.New(membackend.New())
	defer client.Close()
	ctx := context.Background()

	sweep := func(ctx context.Context) error {
		ran, err := client.Locker("sweep").TryDo(ctx, func(context.Context) error { return nil })
		fmt.Println(ran, err)
		return nil
	}
	sweep(ctx)
	client.Locker("sweep").Do(ctx, func(context.Context) error {
		return sweep(ctx) // as another: it has no part in the context of this Do
	})
	// Output:
	// true <nil>
	// false <nil>
}

// Everything that is done with a context of WithOwner is one party, in whatever goroutine, and is
// not kept out by what it holds itself. Each lock needs its unlock.
func ExampleWithOwner() {
	client := dlock.New(membackend.New())
	defer client.Close()
	l := client.Locker("orders:42")

	job := dlock.WithOwner(context.Background(), dlock.NewOwner()) // one for each sequential job
	for range 2 {
		if err := l.LockContext(job); err != nil {
			fmt.Println(err)
			return
		}
	}
	n, err := l.HoldCount(job)
	fmt.Println(n, err)

	otherJob := dlock.WithOwner(context.Background(), dlock.NewOwner())
	ok, err := l.TryLock(otherJob)
	fmt.Println(ok, err)

	for range 2 {
		if err := l.UnlockContext(job); err != nil {
			fmt.Println(err)
		}
	}
	ok, err = l.TryLock(otherJob)
	fmt.Println(ok, err)
	// Output:
	// 2 <nil>
	// false <nil>
	// true <nil>
}

// For makes a sync.Locker that its owner can lock again while having it, for code that can't pass a
// context on.
func ExampleLocker_For() {
	client := dlock.New(membackend.New())
	defer client.Close()

	var l sync.Locker = client.Locker("tree").For(dlock.NewOwner())
	var walk func(depth int)
	walk = func(depth int) {
		l.Lock()
		defer l.Unlock()
		fmt.Println("depth", depth)
		if depth < 2 {
			walk(depth + 1)
		}
	}
	walk(0)
	// Output:
	// depth 0
	// depth 1
	// depth 2
}

// UnlockContext says what Unlock can only log, or panic about. A context that is over doesn't keep
// it from unlocking.
func ExampleLocker_UnlockContext() {
	client := dlock.New(membackend.New())
	defer client.Close()
	l := client.Locker("orders:42")

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := l.LockContext(ctx); err != nil {
		fmt.Println(err)
		return
	}
	cancel() // the request is aborted, say
	fmt.Println(l.UnlockContext(ctx))

	err := l.UnlockContext(context.Background())
	fmt.Println(errors.Is(err, dlock.ErrNotHeld))
	fmt.Println(err)
	// Output:
	// <nil>
	// true
	// dlock: unlock "orders:42": not held
}

// Lost tells a holder that the lock ended before its unlock. Get the channel while the lock is
// held.
func ExampleLocker_Lost() {
	client := dlock.New(membackend.New())
	defer client.Close()
	ctx := context.Background()

	l := client.Locker("leader")
	if err := l.LockContext(ctx, dlock.FixedLease(50*time.Millisecond)); err != nil {
		fmt.Println(err)
		return
	}
	select {
	case <-l.Lost(ctx): // the lease is over
		fmt.Println("stepping down")
	case <-time.After(time.Minute):
		fmt.Println("the term is over")
	}
	// It must still be unlocked: until then it is shut for the goroutines that share it.
	err := l.UnlockContext(ctx)
	fmt.Println(errors.Is(err, dlock.ErrLost))
	// Output:
	// stepping down
	// true
}

// ForceUnlock is for operators, when the holder is known to be gone and its lease is long.
func ExampleLocker_ForceUnlock() {
	store := membackend.New()
	crashed, operator := dlock.New(store), dlock.New(store)
	defer operator.Close()
	ctx := context.Background()

	crashed.Locker("import").Lock()
	crashed.Close() // without unlocking, as a crash does it

	l := operator.Locker("import")
	fmt.Println(l.ForceUnlock(ctx))
	fmt.Println(l.IsLocked(ctx))
	fmt.Println(l.ForceUnlock(ctx)) // nobody had it
	// Output:
	// true <nil>
	// false <nil>
	// false <nil>
}

// With WithGoroutineOwners the goroutine is the owner, as the thread is in Java. It is for code
// that is ported from there.
func ExampleWithGoroutineOwners() {
	client := dlock.New(membackend.New(), dlock.WithGoroutineOwners())
	defer client.Close()
	ctx := context.Background()

	l := client.Locker("orders:42")
	l.Lock()
	l.Lock() // the same goroutine: a second hold
	fmt.Println(l.HoldCount(ctx))

	var other sync.WaitGroup
	other.Go(func() {
		fmt.Println(l.TryLock(ctx))
		fmt.Println(l.UnlockContext(ctx)) // only who locked may unlock
	})
	other.Wait()

	l.Unlock()
	l.Unlock()
	fmt.Println(l.IsLocked(ctx))
	// Output:
	// 2 <nil>
	// false <nil>
	// dlock: unlock "orders:42": not held
	// false <nil>
}

// An HTTP handler that tells a lock that another has, 423 Locked, from a store that doesn't answer,
// 503 Service Unavailable. It answers after Do, and what was done is done, even if the unlock
// fails.
func ExampleLocker_Do_handler() {
	client := dlock.New(membackend.New())
	defer client.Close()

	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
		defer cancel()
		shipped := false
		err := client.Locker("lock:orders:42").Do(ctx, func(ctx context.Context) error {
			shipped = true
			return nil
		})
		switch {
		case shipped:
			fmt.Fprintln(w, "shipped") // and err, if there is one, goes into the log
		case errors.Is(err, dlock.ErrHeld):
			http.Error(w, "somebody else is at it", http.StatusLocked)
		case errors.Is(err, dlock.ErrUnavailable):
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		default:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})

	ship := func() {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("POST", "/orders/42/ship", nil))
		fmt.Print(w.Code, " ", w.Body)
	}
	ship()
	other := client.Locker("lock:orders:42")
	other.Lock()
	ship()
	other.Unlock()
	// Output:
	// 200 shipped
	// 423 somebody else is at it
}

// Any number of readers, or one writer; and who writes may read as well.
func ExampleClient_RWLocker() {
	client := dlock.New(membackend.New())
	defer client.Close()
	rw, ctx := client.RWLocker("lock:prices"), context.Background()
	price := 1

	rw.RLock()
	rw.RLock() // another reader, in this process or another
	ok, err := rw.Writer().TryLock(ctx)
	fmt.Println("writing meanwhile:", ok, err)
	rw.RUnlock()
	rw.RUnlock()

	err = rw.Writer().Do(ctx, func(ctx context.Context) error {
		price = 2
		return rw.Reader().Do(ctx, func(context.Context) error { // within the write
			fmt.Println("the price is", price)
			return nil
		})
	})
	fmt.Println(err)
	// Output:
	// writing meanwhile: false <nil>
	// the price is 2
	// <nil>
}

// A party that reads and wants to write must give up reading first.
func ExampleRWLocker_upgrade() {
	client := dlock.New(membackend.New())
	defer client.Close()
	rw := client.RWLocker("lock:prices")

	err := rw.Reader().Do(context.Background(), func(ctx context.Context) error {
		return rw.Writer().LockContext(ctx)
	})
	fmt.Println(errors.Is(err, dlock.ErrUpgrade))
	// Output: true
}

// A resource that remembers the largest token refuses whoever comes with a smaller one.
func ExampleClient_FencedLocker() {
	client := dlock.New(membackend.New())
	defer client.Close()
	l, ctx := client.FencedLocker("lock:account:7"), context.Background()

	var largest uint64 // what the resource remembers
	write := func(ctx context.Context) bool {
		token, ok := dlock.Token(ctx)
		if !ok || token < largest {
			return false
		}
		largest = token
		return true
	}
	// and then it doesn't run for a while
	paused, err := l.Acquire(ctx, dlock.FixedLease(time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = l.Do(ctx, func(ctx context.Context) error {
		fmt.Println("the next one writes:", write(ctx))
		return nil
	})
	fmt.Println(err)
	fmt.Println("the one that was paused writes:", write(paused.Context()))
	fmt.Println("its release:", errors.Is(paused.Release(ctx), dlock.ErrLost))
	// Output:
	// the next one writes: true
	// <nil>
	// the one that was paused writes: false
	// its release: true
}

// One function acquires, another releases.
func ExampleLocker_Acquire() {
	client := dlock.New(membackend.New())
	defer client.Close()
	ctx := context.Background()

	h, err := client.Locker("lock:orders:42").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	ship := func(ctx context.Context) { fmt.Println("shipping:", ctx.Err()) }
	ship(h.Context())
	fmt.Println(h.Release(ctx))
	fmt.Println(h.Context().Err(), errors.Is(h.Release(ctx), dlock.ErrNotHeld))
	// Output:
	// shipping: <nil>
	// <nil>
	// context canceled true
}

// At most two at a time, however many want to, in however many processes.
func ExampleClient_Semaphore() {
	client := dlock.New(membackend.New())
	defer client.Close()
	slots := client.Semaphore("slots:mailer", 2)

	var inside, most atomic.Int32
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			err := slots.Do(context.Background(), 1, func(context.Context) error {
				most.Store(max(most.Load(), inside.Add(1)))
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	all.Wait()
	fmt.Println("more than two:", most.Load() > 2)
	// Output: more than two: false
}

// Several permits come at once or not at all, and more than there are never.
func ExampleSemaphore_Acquire() {
	client := dlock.New(membackend.New())
	defer client.Close()
	slots, ctx := client.Semaphore("slots:render", 4), context.Background()

	large, err := slots.Acquire(ctx, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	left, err := slots.Available(ctx)
	fmt.Println(left, err)

	_, err = slots.Acquire(ctx, 2, dlock.Wait(0))
	fmt.Println(errors.Is(err, dlock.ErrHeld))
	_, err = slots.Acquire(ctx, 5)
	fmt.Println(errors.Is(err, dlock.ErrTooMany))
	fmt.Println(large.Release(ctx))
	// Output:
	// 1 <nil>
	// true
	// true
	// <nil>
}

// The first that came is served first, whichever process it is in.
func ExampleClient_FairLocker() {
	store := membackend.New()
	here, there := dlock.New(store), dlock.New(store) // two processes
	defer here.Close()
	defer there.Close()
	ctx := context.Background()

	till := here.FairLocker("lock:till:3")
	till.Lock()
	var all sync.WaitGroup
	for i, client := range []*dlock.Client{there, here, there} {
		all.Go(func() {
			err := client.FairLocker("lock:till:3").Do(ctx, func(context.Context) error {
				fmt.Println("customer", i+1)
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	till.Unlock()
	all.Wait()
	// The order in which they came isn't known here.

	// Unordered output:
	// customer 1
	// customer 2
	// customer 3
}

// Why was it lost? The cause of the context, Err, Release and the log say the same.
func ExampleLoss() {
	client := dlock.New(membackend.New(), dlock.WithLogger(slog.New(slog.DiscardHandler)))
	defer client.Close()

	hold, err := client.Locker("orders:42").Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Locker("orders:42").ForceUnlock(context.Background()) // by an operator

	<-hold.Context().Done()
	if loss, ok := errors.AsType[*dlock.Loss](context.Cause(hold.Context())); ok {
		fmt.Println(loss.Name, loss.Reason)
	}
	fmt.Println(errors.Is(hold.Release(context.Background()), dlock.ErrLost))
	// Output:
	// orders:42 forced
	// true
}

// Metrics of one's own: how long calls wait, and how many locks are lost, and why. Package
// oteldlock has them for OpenTelemetry.
func ExampleWithTrace() {
	var waited atomic.Int64
	lost := make(chan dlock.LossReason, 1)
	client := dlock.New(membackend.New(), dlock.WithLogger(slog.New(slog.DiscardHandler)),
		dlock.WithTrace(&dlock.Trace{
			AcquireDone: func(_ context.Context, e dlock.AcquireDone) {
				waited.Add(int64(e.Waited))
				fmt.Println(e.Name, e.Outcome, e.Via)
			},
			Lost: func(l *dlock.Loss) { lost <- l.Reason },
		}))
	defer client.Close()

	client.Locker("import").LockContext(context.Background(), dlock.FixedLease(10*time.Millisecond))
	fmt.Println("lost:", <-lost)
	// Output:
	// import acquired store
	// lost: lease
}

// Holder says who has a lock, and Holds what this client has.
func ExampleLocker_Holder() {
	store := membackend.New()
	client := dlock.New(store, dlock.WithClientID("web-7"))
	defer client.Close()
	hold, err := client.Locker("orders:42").Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hold.Release(context.Background())
	for _, h := range client.Holds() {
		fmt.Println(h.Name, h.Renewed, h.Lease)
	}

	other := dlock.New(store)
	defer other.Close()
	who, err := other.Locker("orders:42").Holder(context.Background())
	fmt.Println(who.Client, who.Count, err)
	for lock, err := range other.Locks(context.Background(), "orders:") {
		fmt.Println(lock.Name, len(lock.Holders), err)
	}
	// Output:
	// orders:42 true 30s
	// web-7 1 <nil>
	// orders:42 1 <nil>
}

// Of all processes that run this one leads. The others wait, and one of them goes on when it
// resigns, or dies.
func ExampleElection() {
	client := dlock.New(membackend.New(), dlock.WithClientID("billing-7f9c"))
	defer client.Close()
	election := client.Election("billing")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := election.Run(ctx, func(ctx context.Context) error {
		term, _ := dlock.Token(ctx) // for who should refuse what an earlier leader sends late
		fmt.Println("term", term, "leads:", election.IsLeader())
		for range 3 {
			if ctx.Err() != nil {
				return nil // leads no more, and Run campaigns again
			}
			fmt.Println("sending invoices")
		}
		return nil // done
	})
	if err != nil && ctx.Err() == nil { // that ctx has ended, after a SIGTERM, is no failure
		log.Fatal(err)
	}
	// Output:
	// term 1 leads: true
	// sending invoices
	// sending invoices
	// sending invoices
}

// Anybody may look who leads, candidate or not.
func ExampleElection_Changes() {
	store := membackend.New()
	client, other := dlock.New(store, dlock.WithClientID("a")), dlock.New(store)
	defer client.Close()
	defer other.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	for leader, err := range other.Election("billing").Changes(ctx) {
		switch {
		case err != nil:
			fmt.Println(err) // and it goes on, unless nothing can be had from the store
		case leader == "":
			fmt.Println("nobody leads")
			go client.Election("billing").Run(ctx, func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
		default:
			fmt.Println(leader, "leads")
			return
		}
	}
	// Output:
	// nobody leads
	// a leads
}

// An import in three parts, by any processes: when all are done, the index is made.
func ExampleClient_Latch() {
	store := membackend.New()
	here, there := dlock.New(store), dlock.New(store) // two processes
	defer here.Close()
	defer there.Close()
	ctx := context.Background()

	const name = "import:2026-11-22" // a name for each occasion
	for i, client := range []*dlock.Client{here, there, there} {
		set, err := client.Latch(name).Set(ctx, 3) // each sets it, before it begins: the first does
		fmt.Println("part", i+1, set, err)
	}
	done := make(chan error)
	go func() { done <- here.Latch(name).Wait(ctx) }()

	for range 3 {
		if err := there.Latch(name).CountDown(ctx); err != nil { // when a part is done
			fmt.Println(err)
		}
	}
	fmt.Println("making the index", <-done)
	left, err := there.Latch(name).Count(ctx)
	fmt.Println(left, err)
	// Output:
	// part 1 true <nil>
	// part 2 false <nil>
	// part 3 false <nil>
	// making the index <nil>
	// 0 <nil>
}

// A job that every replica starts at three o'clock, by a clock of its own, and that is to be done
// once.
func ExampleClient_Once() {
	store := membackend.New()
	client, other := dlock.New(store), dlock.New(store) // as two processes
	defer client.Close()
	defer other.Close()
	ctx := context.Background()

	report := func(ctx context.Context) error {
		fmt.Println("making the report")
		return nil
	}
	// the same for all, whenever they come: not the time at which they do
	scheduled := "2026-11-22T03:00"
	for _, replica := range []*dlock.Client{client, other} {
		ran, err := replica.Once(ctx, "report", scheduled, time.Hour, report)
		switch {
		case errors.Is(err, dlock.ErrHeld):
			fmt.Println("another is making it")
		case err != nil:
			fmt.Println(ran, err)
		case ran:
			fmt.Println("made it")
		default:
			fmt.Println("it is made")
		}
	}
	for lock, err := range client.Locks(ctx, "once:report@") {
		fmt.Println(lock.Name, lock.Holders[0].Kept, err)
	}
	// Output:
	// making the report
	// made it
	// it is made
	// once:report@2026-11-22T03:00 true <nil>
}

// A cleanup that each replica may start at any time, and that is to be done once a minute at most.
func ExampleAtLeast() {
	store := membackend.New()
	client, other := dlock.New(store), dlock.New(store) // as two processes
	defer client.Close()
	defer other.Close()
	ctx := context.Background()

	for _, replica := range []*dlock.Client{client, other} {
		err := replica.Locker("cleanup").Do(ctx, func(context.Context) error {
			fmt.Println("cleaning up")
			return nil
		}, dlock.AtLeast(time.Minute), dlock.Wait(0))
		fmt.Println(errors.Is(err, dlock.ErrHeld))
	}
	left, err := other.Locker("cleanup").TTL(ctx)
	fmt.Println(left.Round(time.Minute), err)
	// Output:
	// cleaning up
	// false
	// true
	// 1m0s <nil>
}

// A transfer needs both accounts, whichever comes first: All takes both or none, and never waits
// for one while it has the other, so that transfers in both directions don't wait for each other.
func ExampleAll() {
	client := dlock.New(membackend.New())
	defer client.Close()

	balance := map[string]int{"alice": 100, "bob": 100}
	transfer := func(from, to string) error {
		both := dlock.All(client.Locker("account:"+from), client.Locker("account:"+to))
		return both.Do(context.Background(), func(ctx context.Context) error {
			balance[from]--
			balance[to]++
			return ctx.Err() // of either: both must have been held all the time
		})
	}
	var transfers sync.WaitGroup
	for range 50 {
		transfers.Go(func() { transfer("alice", "bob") })
		transfers.Go(func() { transfer("bob", "alice") })
	}
	transfers.Wait()
	fmt.Println(balance["alice"], balance["bob"])

	same := dlock.All(client.Locker("account:alice"), client.Locker("account:alice"))
	fmt.Println(same.LockContext(context.Background()))
	// Output:
	// 100 100
	// dlock: lock "account:alice, account:alice": "account:alice" is there twice
}

// A lease of its own: this job goes on through an outage of the store of some minutes, which other
// locks of the client, with leases of 30 s, are lost in. It is renewed for as long as it is held.
func ExampleRenewedLease() {
	client := dlock.New(membackend.New())
	defer client.Close()
	ctx := context.Background()

	job := client.Locker("migration")
	if err := job.LockContext(ctx, dlock.RenewedLease(10*time.Minute)); err != nil {
		fmt.Println(err)
		return
	}
	// if nobody renewed it any more: who crashes keeps others out for so long
	left, err := job.TTL(ctx)
	fmt.Println(left.Round(time.Minute), err)
	fmt.Println(job.UnlockContext(ctx))
	// Output:
	// 10m0s <nil>
	// <nil>
}

// With makes a Locker whose calls have options as defaults, for code that can't give any: Lock of a
// sync.Locker.
func ExampleLocker_With() {
	client := dlock.New(membackend.New())
	defer client.Close()

	l := client.Locker("orders:42").With(dlock.RenewedLease(10*time.Second),
		dlock.Wait(time.Second))
	var mu sync.Locker = l
	mu.Lock() // which waits for as long as it takes
	fmt.Println(client.Holds()[0].Lease)
	mu.Unlock()

	// A call's own options come after the defaults.
	h, err := l.Acquire(context.Background(), dlock.RenewedLease(time.Minute))
	fmt.Println(client.Holds()[0].Lease, err)
	fmt.Println(h.Release(context.Background()))
	// Output:
	// 10s
	// 1m0s <nil>
	// <nil>
}

// An error that is logged says in attributes what it is about, by the names that the client's own
// records have. The whole sentence is among them.
func ExampleError_LogValue() {
	logger := slog.New(slog.NewJSONHandler(os.Stdout,
		&slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{} // so that the output is the same each time
			}
			return a
		}}))
	store := membackend.New()
	client, other := dlock.New(store), dlock.New(store)
	defer client.Close()
	defer other.Close()
	other.Locker("orders:42").Lock() // somebody is inside

	err := client.Locker("orders:42").LockContext(context.Background(), dlock.Wait(0))
	logger.Warn("later, then", "err", err)
	// Output:
	// {"level":"WARN","msg":"later, then","err":{"msg":"dlock: lock \"orders:42\": not acquired in time: held by another","op":"lock","name":"orders:42","reason":"held"}}
}

// So does a Hold, and what Client.Holds, Client.Waits and Client.Inspect return.
func ExampleHold_LogValue() {
	client := dlock.New(membackend.New(), dlock.WithClientID("billing"))
	defer client.Close()
	ctx := context.Background()

	h, err := client.Locker("orders:42").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, a := range h.LogValue().Group() {
		fmt.Println(a.Key)
	}
	fmt.Println(h.Release(ctx))
	// Output:
	// name
	// kind
	// holder
	// until
	// <nil>
}

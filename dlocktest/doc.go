// Package dlocktest is for tests of code that uses locks of
// [github.com/seed951563bd/distsync/dlock]: a store in memory, whose faults are called by name.
//
// A [Store] takes the place of a Redis in a test. The code under test is given a *dlock.Client, and can't tell the
// difference:
//
//	func TestShip(t *testing.T) {
//		store := dlocktest.New(t)
//		client := dlock.New(store)
//		defer client.Close()
//
//		// ... the code under test is given client
//	}
//
// At the end of the test the Store fails it if a lock is still held or waited for: so a test finds a
// path that forgets to unlock.
//
// # What can be tested with it
//
// That a handler answers 423 while another has the lock: take the lock with a second client, as another
// process would, and call the handler.
//
//	other := dlock.New(store)
//	defer other.Close()
//	l := other.Locker("orders:42")
//	l.Lock() // and l.Unlock() before the test ends
//
// That it answers 503 when the store is down: [Store.Fail] has steps fail, and [Store.Hang] has them hang. [Store.Recover] ends both.
//
//	store.Fail(-1, nil) // all steps, until Recover
//
// That a job stops when its lock is lost: [Store.Lose] takes a lock away. Its holder finds
// out when it next renews, as with any store.
//
//	store.Lose("import")
//
// That it also stops when the store is silent for so long that the lease ends: [Store.PauseRenewals].
//
// That nothing is done twice, or that it is noticed, when the store has forgotten a lock: [Store.Wipe].
//
// That a lock is held while the job runs, and free after it: [Store.Held] and [Store.Free].
//
// # Time
//
// Everything works in real time: if a lease is to run out, give the client a short one,
// dlock.WithLease(200*time.Millisecond). In a bubble of testing/synctest waiting costs nothing, and
// synctest.Wait returns when all goroutines wait. Make the Store and its clients inside the bubble, with
// its t, and close the clients before it ends:
//
//	synctest.Test(t, func(t *testing.T) {
//		store := dlocktest.New(t)
//		client := dlock.New(store)
//		defer client.Close()
//
//		done := make(chan error)
//		go func() { done <- importOrders(t.Context(), client) }()
//		synctest.Wait() // it has its lock, and works
//
//		store.Lose("import")
//		if err := <-done; !errors.Is(err, dlock.ErrLost) {
//			t.Errorf("it ended with %v", err)
//		}
//	})
//
// # What it doesn't show
//
// A Store is one machine that never fails by itself, and its clock is that of the test. Failovers of
// servers, and faults of networks, are tested in this repository, on real servers: see
// docs/reliability.md there.
package dlocktest

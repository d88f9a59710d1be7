// Package dlocktest is for testing code that uses locks of
// [github.com/seed951563bd/distsync/dlock]. It provides a store in memory, with methods that inject
// faults.
//
// A [Store] takes the place of a Redis server in a test. The code under test gets a *dlock.Client,
// as in production:
//
//	func TestShip(t *testing.T) {
//		store := dlocktest.New(t)
//		client := dlock.New(store)
//		defer client.Close()
//
//		// ... the code under test is given client
//	}
//
// At the end of the test, the Store fails the test if a lock is still held or waited for. So the
// test finds code that forgets to unlock.
//
// # Possible tests
//
// To test that a handler answers 423 while another client holds the lock, acquire the lock with a
// second client, as another process would, and call the handler.
//
//	other := dlock.New(store)
//	defer other.Close()
//	l := other.Locker("orders:42")
//	l.Lock() // and l.Unlock() before the test ends
//
// To test that the handler answers 503 when the store is down, make steps fail with [Store.Fail],
// or make them hang with [Store.Hang]. [Store.Recover] ends both.
//
//	store.Fail(-1, nil) // all steps, until Recover
//
// To test that a job stops when its lock is lost, take the lock away with [Store.Lose]. The holder
// finds out when it next renews, as with any store.
//
//	store.Lose("import")
//
// To test that the job also stops when the store doesn't answer until the lease has expired, call
// [Store.PauseRenewals].
//
// To test that two jobs don't do the same work after the store has lost its data, or at least
// notice that they do, call [Store.Wipe].
//
// To test that a lock is held while the job runs, and free afterwards, call [Store.Held] and
// [Store.Free].
//
// # Time
//
// A Store works in real time. To let a lease run out, give the client a short lease, such as
// dlock.WithLease(200*time.Millisecond). In a bubble of testing/synctest, waiting takes no real
// time, and synctest.Wait returns when all goroutines wait. Create the Store and its clients inside
// the bubble, with the bubble's t, and close the clients before the bubble ends:
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
// # Limits
//
// A Store is like a single machine that never fails by itself, and it uses the clock of the test.
// It can't simulate server failovers or network faults. This repository tests those on real
// servers: see its docs/reliability.md.
package dlocktest

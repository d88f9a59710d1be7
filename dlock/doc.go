// Package dlock is distributed locks that behave like the locks you know.
//
// A [Locker] is a [sync.Locker] that excludes other processes too. It is made by a [Client], and a
// Client by [New] from a store: package membackend keeps locks in this process, redisbackend in
// Redis. Nothing else in a program depends on which.
//
//	client := dlock.New(redisbackend.New(rdb))
//	defer client.Close()
//
//	err := client.Locker("orders:42").Do(ctx, func(ctx context.Context) error {
//		return ship(ctx, 42) // nobody else is in here; ctx ends if the lock is lost
//	})
//
// # What is guaranteed
//
// A lock is held on a lease: the store frees it when the lease runs out, so that a holder that dies
// does not keep everybody out for ever. While a program holds a lock, its client renews the lease
// every third of it. This does not guarantee that only one holder is acting at any moment (what
// some call fencing): a process that is paused for longer than its lease finds out only when it
// wakes.
//
// What is guaranteed is that of all holders that look, at most one finds its lock valid, provided
// that the store keeps what it has acknowledged, and that clocks run at the same rate to within 1
// %. Clocks need not show the same time: a client counts its lease from before it sent the request,
// on the monotonic clock, and believes in 99 % of it. A holder looks by way of the context that
// [Locker.Do] gives it, of [Locker.Lost], or of [Locker.IsHeld]; it is told at the latest when the
// lease is over, even if the store never answers again. Lost is final: no late answer brings a hold
// back.
//
// A store that forgets (a Redis that fails over to a replica that lags, or restarts without its
// data), and a ForceUnlock, can let a second holder in; the first is told when it next renews.
// Where that is a disaster rather than a waste, let the resource itself refuse the stale writer.
//
// # Who owns a lock
//
// Without more said a Locker is a mutex variable: one hold at a time, a second Lock waits, any
// goroutine may unlock. To lock again what one has already, say who one is: [WithOwner] and
// [NewOwner] make everything that is done with a context one party; [Locker.For] does it for code
// that takes a sync.Locker; and the context of a Do re-enters that lock. [WithGoroutineOwners] is
// for code that was written for locks owned by threads.
//
// # When things go wrong
//
// A reply that is lost leaves it open whether a lock was taken or given back. No request is ever
// repeated blindly; every acquisition is known to the store under a number of its own, and one that
// nobody has any more is released in the background until the store has answered. A call returns
// when its context ends, even while the store hangs.
//
// Errors are an [*Error] that wraps [ErrNotAcquired], [ErrNotHeld], [ErrLost], [ErrClosed],
// [ErrConflict], the error and cause of the context, or what the store said: use [errors.Is]. Two
// methods have no error to return. Lock goes on trying, and panics only where that can't help;
// Unlock panics if the lock was never held, and logs if it was lost.
package dlock

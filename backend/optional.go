package backend

import "context"

// Notifier is an optional interface of a [Session] whose store can tell waiters that a lock has
// become free. Without it waiters poll.
type Notifier interface {
	// Subscribe arranges for req.Wake to be called whenever the named lock is released or
	// force-released in the store, by whatever session. It returns when the subscription is
	// established: a release that happens after Subscribe has returned must lead to a call of Wake,
	// unless the message is lost, or another has the lock again by then. A store may lose messages;
	// waiters look again now and then. The context is for the call: what it has established goes on
	// when ctx ends.
	//
	// When the subscription breaks, the session restores it by itself, and calls Wake once when it
	// stands again, since a release may have gone unnoticed in between. Wake may be called without
	// a reason; each call costs an attempt.
	//
	// Wake doesn't block and may be called from any goroutine. After Subscription.Close has
	// returned it may be called a last time.
	//
	// An error of kind [Refused] means that the store will never notify this client: it polls
	// instead. After any other error Subscribe is called again later. There may be several
	// subscriptions to one name at a time: a new one may be asked for while the last is being
	// given up.
	Subscribe(ctx context.Context, req SubscribeRequest) (Subscription, error)
}

// SubscribeRequest asks to be woken when a lock is released.
type SubscribeRequest struct {
	Kind  Kind
	Name  string
	Owner string // who waits, for kinds of lock that wake one waiter by name; else empty
	Wake  func(Wakeup)
}

// Wakeup is a kind of wake-up: whom it is meant for.
type Wakeup uint8

// Kinds of Wakeup.
const (
	WakeOne Wakeup = iota // one waiter of this client may get in
	WakeAll               // every waiter of this client may
)

// Subscription is a standing subscription.
type Subscription interface {
	// Close gives the subscription up. It doesn't wait for the store. It is called once, perhaps
	// after the session's Close.
	Close()
}

// Prompt is an optional interface of a [Session] whose steps never wait, neither for another process
// nor for anything else: one that keeps locks in the memory of this process. Its steps are called
// in the goroutine of whoever locks. Those of a session that is neither Prompt nor [Leavable] get a
// goroutine each, so that a caller can leave a step that hangs.
type Prompt interface {
	// Prompt does nothing.
	Prompt()
}

// Leavable is an optional interface of a [Session] whose steps return as soon as their context ends,
// though what they have sent may still be under way: then with an error of kind [Unknown]. Its steps
// are called in the goroutine of whoever locks. Those of other sessions get a goroutine each.
type Leavable interface {
	// Settle returns when nothing is under way any more of steps that have returned. It is called
	// once, after Close, and perhaps waited for in vain.
	Settle()
}

// BatchRenewer is an optional interface of a [Session] that can renew many holds for the price of
// few. Without it every hold is renewed by a call of Renew, and these run concurrently.
type BatchRenewer interface {
	// RenewBatch does what Renew does, for each request. It calls answer once for each, with the
	// request's index, as soon as its answer is there, from any goroutine and concurrently, and
	// returns after the last of these calls. Where a store consists of several servers, one that
	// hangs must not delay the answers of the others. The requests may not be changed or kept.
	RenewBatch(ctx context.Context, reqs []RenewRequest, answer func(i int, res RenewResult, err error))
}

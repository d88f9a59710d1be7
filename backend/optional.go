package backend

import (
	"context"
	"time"
)

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
	Owner string // empty: a subscription is for all who wait in one client
	Wake  func(Wakeup)

	// Watches says that whoever subscribes doesn't wait for the lock, but looks who has it: a store that lets
	// those who are subscribed come one after the other doesn't count this one. Wake is then called also when a
	// release with Keep has kept an Exclusive or a Fenced lock, and may be called when somebody has acquired it.
	Watches bool

	// Granted is told of a Fair lock that was given to somebody in line: see [Liner]. For other kinds it is
	// nil. What is said of Wake goes for it, too. Wake is then for those who are to look again; a release
	// that gives the lock to the first in line, or frees it while nobody is in line, need not call it. Either
	// may lead to Subscription.Close before it returns.
	Granted func(Grant)

	// Changed, unless it is nil, is told when the subscription breaks, with why, and when it stands again,
	// with nil: for people who look on. Nobody waits for it, and what it is told may come late. It is called
	// as Wake is.
	Changed func(broken error)
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

// Alerter is an optional interface of a [Session] whose store learns by itself that somebody's lock was taken from him. Without it a
// client hears of that when it next renews or, of a lock with a fixed lease, not before that ends.
type Alerter interface {
	// OnAlert arranges for alert to be called with the name of a lock of which a hold of this session may be
	// lost. It is no more than a hint: the client looks at each of its holds of that name ([Session].Look),
	// and tells whoever has one that the store doesn't know. So alert may be called without a reason, each
	// call costs these looks, and one that is missing costs only time.
	//
	// OnAlert is called once, before any step. The function doesn't block, and may be called from any
	// goroutine; after Close it does nothing.
	OnAlert(alert func(name string))
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

// Batcher is an optional interface of a [Session] that can acquire and release several locks for the price of few. Without it
// each is acquired and released by a call of its own, and these run concurrently.
//
// Both methods do what Acquire or Release does, for each request: each is a step of its own, which has its own result or error. The requests are
// for different locks, and are carried out in their order where one server has them. answer is called once for each, with the
// request's index, as soon as its answer is there, from any goroutine and concurrently; the method returns after the last of these calls. Where a store
// consists of several servers, one that hangs must not delay the answers of the others. The requests may not be changed or kept. A session that is
// [Leavable] leaves them as it does a step, and that can't be waited for, too.
type Batcher interface {
	AcquireBatch(ctx context.Context, reqs []AcquireRequest, answer func(i int, res AcquireResult, err error))
	ReleaseBatch(ctx context.Context, reqs []ReleaseRequest, answer func(i int, res ReleaseResult, err error))
}

// Liner is an interface that a [Session] must implement if its store has [Fair] locks.
//
// Those who wait for such a lock stand in line in the store, all of them, with a place each, which
// ends unless it is kept. Every step about the lock, but Look, first takes out the places that are
// over and last, if the lock is free then, gives it to the first in line, whoever's step it is:
// that owner holds it once, for a short time that the store chooses (about a second; nobody waits
// for longer for one who is gone by then; but see [AcquireRequest].Waited), and its place is gone.
// Its session is told by way of Granted, if it has subscribed, and whoever was given the lock is
// inside, without asking. It then renews, or releases, or both.
//
// A store that can't take out very many places at once may leave those that aren't first until they
// are. Until then their owners get nothing, unless their places are kept again.
//
// So a step finds the lock free only if it has no line, or if what was held ran out since the last step; then the first step
// that comes gives it to the first in line, and takes it itself only if its own owner is that.
type Liner interface {
	// KeepPlaces is a look at one lock by a client for all of its owners that wait for it: the places of
	// those who are in line end with Place from now. Who is neither in line nor holds the lock has had a
	// place that it lost, and comes back: before all others, in the order of the request.
	KeepPlaces(ctx context.Context, req PlacesRequest) (PlacesResult, error)
}

// PlacesRequest asks to keep places.
type PlacesRequest struct {
	Kind   Kind
	Name   string
	Owners []string      // at least one, in the order in which they came
	Place  time.Duration // positive: how long their places last
}

// PlacesResult is the answer to a [PlacesRequest].
type PlacesResult struct {
	Holder    string        // which of these owners has the lock, or empty
	Remaining time.Duration // as in AcquireResult: how long the present hold lasts
}

// Grant says that a lock was given to somebody who stood in line for it.
type Grant struct {
	Owner string

	// Since is an instant by the clock of this process, monotonic, at which the owner surely didn't have the
	// lock yet, and Lease is for how long it has it, counted from then: a store that knows only by its own
	// clock when it gave the lock away has to translate that, and to allow for how far the clocks may differ
	// by now. A Lease of zero says that the owner has to ask: the store doesn't know whether it has the lock,
	// or can't say since when.
	Since time.Time
	Lease time.Duration
}

// Explainer is an optional interface of a [Backend] that can say why it lacks a kind of lock, where there is more to say than that
// it hasn't been written.
type Explainer interface {
	// WhyNot returns why the store doesn't have a kind that its [Limits] don't declare, in words that go
	// after a colon, or nothing.
	WhyNot(kind Kind) string
}

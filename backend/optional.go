package backend

import (
	"context"
	"time"
)

// Notifier is an optional interface of a [Session] whose store can tell waiters that a lock has
// become free. Without it waiters poll.
type Notifier interface {
	// Subscribe arranges for req.Wake to be called whenever any session releases or force-releases
	// the named lock in the store. It returns when the subscription stands. A release after that
	// must lead to a call of Wake, unless the message is lost, or another has the lock again by
	// then. A store may lose messages; waiters look again now and then. The context is for the
	// call: the subscription goes on when ctx ends.
	//
	// If the subscription breaks, the session restores it by itself, and then calls Wake once,
	// since a release may have gone unnoticed. Needless calls of Wake are allowed; each costs an
	// attempt.
	//
	// Wake doesn't block and may be called from any goroutine. It may be called a last time after
	// Subscription.Close has returned.
	//
	// An error of kind [Refused] means that the store will never notify this client: it polls
	// instead. After any other error Subscribe is called again later. There may be several
	// subscriptions to one name at a time: a new one may be asked for while the last is being given
	// up.
	Subscribe(ctx context.Context, req SubscribeRequest) (Subscription, error)
}

// SubscribeRequest asks to be woken when a lock is released.
type SubscribeRequest struct {
	Kind Kind
	Name string

	// Deprecated: Owner is always empty, since a subscription is for all waiters of one client. A
	// store has nothing to do with it.
	Owner string

	// Wake is called with 0. Nobody looks at its parameter.
	Wake func(Wakeup)

	// Watches says that the subscriber doesn't wait for the lock, but watches who has it. A store
	// that lets subscribers come one after the other doesn't count this one. Wake is then also
	// called when a release with Keep has kept an Exclusive or Fenced lock, and may be called when
	// the lock is acquired.
	Watches bool

	// Granted is told of a Fair lock that was given to a waiter in line: see [Liner]. It is nil for
	// other kinds. It is called like Wake. Wake then tells waiters to look again; it need not be
	// called for a release that gives the lock to the first in line, or frees it while nobody is in
	// line. Both may lead to Subscription.Close before they return.
	Granted func(Grant)

	// Changed, unless it is nil, is told when the subscription breaks, and why, and with nil when
	// it stands again. It is for people who look on: nobody waits for it, and it may come late. It
	// is called like Wake.
	Changed func(broken error)
}

// Wakeup is the type of what [SubscribeRequest].Wake is called with, which is 0 and means nothing.
type Wakeup uint8

// What a Wakeup has meant once. Nobody looks at it: a client knows by itself how many of those who
// wait in it may get in.
//
// Deprecated: call Wake with 0.
const (
	WakeOne Wakeup = iota
	WakeAll
)

// Subscription is a standing subscription.
type Subscription interface {
	// Close gives the subscription up. It doesn't wait for the store. It is called once, perhaps
	// after the session's Close.
	Close()
}

// Prompt was an optional interface of a [Session] whose steps never wait.
//
// Deprecated: say so with [StepsNeverWait], see [Capable].
type Prompt interface {
	// Prompt does nothing.
	Prompt()
}

// Leavable was an optional interface of a [Session] whose steps return as soon as their context ends.
//
// Deprecated: say so with [StepsReturn], and have Settle called by way of [Capabilities].Settle.
type Leavable interface {
	// Settle is [Capabilities].Settle.
	Settle()
}

// Alerter was an optional interface of a [Session] whose store learns by itself that a lock was taken
// from its holder.
//
// Deprecated: no client calls OnAlert any more. The holder of a lock that was taken away finds out
// at its next renewal or, with a fixed lease, at the end of that. Leave it out.
type Alerter interface {
	// OnAlert isn't called.
	OnAlert(alert func(name string))
}

// BatchRenewer is an optional interface of a [Session] that can renew many holds in few requests.
// Without it every hold is renewed by its own call of Renew; these calls run concurrently.
type BatchRenewer interface {
	// RenewBatch does what Renew does, for each request. It calls answer once for each, with the
	// request's index, as soon as its answer is there, from any goroutine and concurrently. It
	// returns after the last of these calls. If a store consists of several servers, one that hangs
	// must not delay the answers of the others. The requests must not be changed or kept.
	RenewBatch(ctx context.Context, reqs []RenewRequest, answer func(i int, res RenewResult, err error))
}

// Batcher is an optional interface of a [Session] that can acquire and release several locks in few
// requests. Without it each lock gets its own call, and these calls run concurrently.
//
// Both methods do what Acquire or Release does, for each request: each is a step of its own, with
// its own result or error. The requests are for different locks, and those of one server are
// carried out in their order. Each method calls answer once for each request, with its index, as
// soon as its answer is there, from any goroutine and concurrently. It returns after the last of
// these calls. If a store consists of several servers, one that hangs must not delay the answers of
// the others. The requests must not be changed or kept. A session with [StepsReturn] leaves a
// batch as it leaves a step.
type Batcher interface {
	AcquireBatch(ctx context.Context, reqs []AcquireRequest, answer func(i int, res AcquireResult, err error))
	ReleaseBatch(ctx context.Context, reqs []ReleaseRequest, answer func(i int, res ReleaseResult, err error))
}

// Liner is an interface that a [Session] must implement if its store has [Fair] locks.
//
// All waiters for such a lock stand in line in the store, each with a place that ends unless it is
// kept. Every step about the lock, except Look, first removes the places that are over. If the lock
// is free at the end of the step, the store gives it to the first in line, whichever owner's step
// it is. That owner then holds it once, for a short time that the store chooses: about a second, so
// that a dead owner costs no more (but see [AcquireRequest].Waited). Its place is gone. If its
// session has subscribed, Granted tells it, and the owner is inside without asking. It then renews,
// or releases, or both.
//
// A store that can't remove very many places at once may leave those that aren't first for later.
// Their owners get nothing meanwhile, unless their places are kept again.
//
// So a step finds the lock free only if it has no line, or if the last hold ran out since the last
// step. Then the next step gives the lock to the first in line, and takes it itself only if its own
// owner is that.
type Liner interface {
	// KeepPlaces looks at one lock for all owners of a client that wait for it: the places of those
	// in line end with Place from now. An owner that is neither in line nor holds the lock has lost
	// its place, and comes back: before all others, in the order of the request.
	KeepPlaces(ctx context.Context, req PlacesRequest) (PlacesResult, error)
}

// PlacesRequest asks to keep places.
type PlacesRequest struct {
	Kind   Kind
	Name   string
	Owners []string      // at least one, in order of arrival
	Place  time.Duration // positive: how long their places last
}

// PlacesResult is the answer to a [PlacesRequest].
type PlacesResult struct {
	Holder    string        // which of these owners has the lock, or empty
	Remaining time.Duration // how long the present hold lasts, as in AcquireResult
}

// Grant says that a lock was given to an owner in line.
type Grant struct {
	Owner string

	// Since is an instant of this process's monotonic clock at which the owner surely didn't have
	// the lock yet. Lease is for how long it has the lock, counted from Since. A store that knows
	// its own clock only must translate that, and allow for how far the clocks may differ by now. A
	// Lease of zero says that the owner has to ask: the store doesn't know whether it has the lock,
	// or since when.
	Since time.Time
	Lease time.Duration
}

// Explainer was an optional interface of a [Backend] that can say why it lacks a kind of lock.
//
// Deprecated: sessions say that, by way of [Capabilities].WhyNot.
type Explainer interface {
	// WhyNot is [Capabilities].WhyNot.
	WhyNot(kind Kind) string
}

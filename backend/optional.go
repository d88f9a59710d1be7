package backend

import (
	"context"
	"time"
)

// Notifier is an optional interface of a [Session] whose store can tell waiters that a lock has
// become free. Without it, waiters poll.
type Notifier interface {
	// Subscribe arranges for req.Wake to be called whenever any session releases or force-releases
	// the named lock in the store. It returns when the subscription is active. A release after that
	// must lead to a call to Wake, unless the message is lost, or another owner holds the lock by
	// then. A store may lose messages, since waiters also try again from time to time. The context
	// applies only to the call to Subscribe: the subscription outlives it.
	//
	// If the subscription breaks, the session restores it, and then calls Wake once, since a
	// release may have gone unnoticed. Unnecessary calls to Wake are allowed, but each costs an
	// attempt to acquire the lock.
	//
	// Wake doesn't block and may be called from any goroutine. It may be called a last time after
	// Subscription.Close has returned.
	//
	// An error of kind [Refused] means that the store will never notify this client, so the client
	// polls. After any other error, the client calls Subscribe again later. A name may have several
	// subscriptions at the same time: a caller may begin a new one before it closes the old one.
	Subscribe(ctx context.Context, req SubscribeRequest) (Subscription, error)
}

// SubscribeRequest is a request to be woken when a lock is released.
type SubscribeRequest struct {
	Kind Kind
	Name string

	// Deprecated: Owner is always empty, since a subscription is for all waiters of one client.
	// Stores ignore it.
	Owner string

	// Wake ignores its argument, and is always called with 0.
	Wake func(Wakeup)

	// Watches is set if the subscriber watches the holders of the lock instead of waiting for it. A
	// store that wakes one waiter at a time doesn't count this subscriber as a waiter. Wake is also
	// called when a release with Keep leaves an Exclusive or Fenced lock taken. A store is free to
	// call it when the lock is acquired, too.
	Watches bool

	// Granted is called when the store has given a Fair lock to a waiter in line (see [Liner]). It
	// is nil for other kinds. The rules for calling Wake also apply to Granted. For a Fair lock,
	// Wake tells waiters to try again. It need not be called if a release gives the lock to the
	// first in line, or if nobody is in line. Both functions may call Subscription.Close before
	// they return.
	Granted func(Grant)

	// Changed, if not nil, is called with the reason when the subscription breaks, and with nil
	// when it works again. It is for traces and logs, so it may be called late. The rules for
	// calling Wake also apply to Changed.
	Changed func(broken error)
}

// Wakeup is the type of the argument of [SubscribeRequest].Wake. The argument is always 0, and has
// no meaning.
type Wakeup uint8

// These values once told how many waiters to wake. They no longer have any effect: each client
// decides for itself how many of its waiters try again.
//
// Deprecated: call Wake with 0.
const (
	WakeOne Wakeup = iota
	WakeAll
)

// Subscription is an active subscription.
type Subscription interface {
	// Close ends the subscription. It doesn't wait for the store. It is called once, perhaps after
	// the session's Close.
	Close()
}

// Prompt was an optional interface of a [Session] whose steps never wait.
//
// Deprecated: implement [Capable] and return [StepsNeverWait] instead.
type Prompt interface {
	// Prompt does nothing.
	Prompt()
}

// Leavable was an optional interface of a [Session] whose steps return as soon as their context
// ends.
//
// Deprecated: implement [Capable], with Steps set to [StepsReturn], and with a Settle function.
type Leavable interface {
	// Settle is [Capabilities].Settle.
	Settle()
}

// Alerter was an optional interface of a [Session] whose store can tell a holder that its lock was
// taken away.
//
// Deprecated: clients no longer call OnAlert, so don't implement it. A holder finds out at its next
// renewal or, if its lease is fixed, at the end of the lease.
type Alerter interface {
	// OnAlert is never called.
	OnAlert(alert func(name string))
}

// BatchRenewer is an optional interface of a [Session] that can renew many holds in few requests.
// Without it, each hold is renewed by its own call to Renew, and these calls run concurrently.
type BatchRenewer interface {
	// RenewBatch does for each request what Renew does. It calls answer once for each request, with
	// the request's index, as soon as the store has answered that request. It may call answer from
	// any goroutine, and concurrently, and returns after the last of these calls. If a store
	// consists of several servers, one that hangs must not delay the answers of the others.
	// RenewBatch must not modify or retain reqs.
	RenewBatch(
		ctx context.Context, reqs []RenewRequest, answer func(i int, res RenewResult, err error),
	)
}

// Batcher is an optional interface of a [Session] that can acquire or release several locks in few
// requests. Without it, each lock gets its own call, and these calls run concurrently.
//
// For each request, the methods do what Acquire or Release does. Each request is a separate step,
// with its own result or error. The requests are for different locks, and the requests to one
// server are carried out in order. The methods call answer once for each request, with the
// request's index, as soon as the store has answered that request. They may call answer from any
// goroutine, and concurrently, and return after the last of these calls. If a store consists of
// several servers, one that hangs must not delay the answers of the others. The methods must not
// modify or retain reqs. With [StepsReturn], a batch must return when its context ends, as a step
// must.
type Batcher interface {
	AcquireBatch(
		ctx context.Context, reqs []AcquireRequest,
		answer func(i int, res AcquireResult, err error),
	)
	ReleaseBatch(
		ctx context.Context, reqs []ReleaseRequest,
		answer func(i int, res ReleaseResult, err error),
	)
}

// Liner is an interface that a [Session] must implement if its store supports [Fair] locks.
//
// All waiters for such a lock stand in a line that the store keeps. Each waiter has a place, which
// ends unless it is kept. Every step on the lock, except Look, first removes the places that have
// ended. If the lock is free at the end of the step, the store gives it to the first in line,
// regardless of whose step it was. That owner then holds the lock once, and no longer has a place.
// The store chooses how long the hold lasts. That should be about a second, so that a dead owner
// doesn't block the others for longer. See [AcquireRequest].Waited for an exception. If the owner's
// session has subscribed, the store calls Granted, so the owner learns that it holds the lock
// without asking. The owner then renews the lock, releases it, or both.
//
// If very many places have ended, a step is allowed to leave some of them for later steps to
// remove, but not those at the head of the line. While a place that has ended is still there, the
// store doesn't give its owner the lock, unless KeepPlaces restores the place.
//
// So there are only two cases in which a step finds the lock free: nobody is in line, or a hold has
// expired since the previous step. In the second case, the step gives the lock to the first in
// line, even if another owner asks for it.
type Liner interface {
	// KeepPlaces extends the places of all of a client's owners that wait for one lock. The places
	// of owners in line then end after Place, counted from now. An owner that is neither in line
	// nor holding the lock has lost its place, and returns to the head of the line. If there are
	// several such owners, they return in the order in which the request lists them.
	KeepPlaces(ctx context.Context, req PlacesRequest) (PlacesResult, error)
}

// PlacesRequest is a request to keep the places of owners in line.
type PlacesRequest struct {
	Kind Kind
	Name string
	// Owners lists the waiting owners in order of arrival. There is at least one.
	Owners []string
	// Place is how long the places last. It is positive.
	Place time.Duration
}

// PlacesResult is the answer to a [PlacesRequest].
type PlacesResult struct {
	// Holder is whichever of the request's owners holds the lock, or empty if none does.
	Holder string
	// Remaining is how long the present hold lasts, as in [AcquireResult].
	Remaining time.Duration
}

// Grant reports that the store gave a lock to an owner in line.
type Grant struct {
	Owner string

	// Since is a time before the owner got the lock, on this process's monotonic clock. Lease is
	// how long the owner holds the lock, counted from Since. A store that knows the time of the
	// grant only on its own clock must convert it, and allow for the difference between the clocks.
	// If Lease is zero, the store doesn't know whether the owner still holds the lock, or since
	// when, and the owner has to ask.
	Since time.Time
	Lease time.Duration
}

// Explainer was an optional interface of a [Backend] that could say why it doesn't support a kind
// of lock.
//
// Deprecated: use [Capabilities].WhyNot instead.
type Explainer interface {
	// WhyNot is [Capabilities].WhyNot.
	WhyNot(kind Kind) string
}

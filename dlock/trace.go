package dlock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Trace is a set of functions that a client calls at certain events. It is for metrics, spans and
// logs, like net/http/httptrace. Any of the functions can be nil. They are called concurrently,
// each in the goroutine in which the event happens. A slow function delays that goroutine, which
// might be one that renews locks. So the functions must not block, must not panic (which can end
// the program), and must not use the client. Without a Trace no function is called, and nothing is
// allocated.
//
// If AcquireDone reported [OutcomeAcquired], and the lock wasn't acquired by re-entry
// ([ViaReentry]), the hold ends with exactly one of these events: Lost, or ReleaseDone with
// [UnlockReleased], [UnlockHandedOn], [UnlockFailed] or [UnlockForsaken]. Events that happen in
// different goroutines at about the same time can be reported in any order. So the end of a short
// hold might be reported before its beginning.
type Trace struct {
	// AcquireStart is called when a call that acquires a lock begins. It returns ctx, or a context
	// derived from ctx, for example with a span. The returned context is passed to the requests to
	// the store, and to AcquireDone. The context of the Hold isn't derived from it.
	AcquireStart func(ctx context.Context, e AcquireStart) context.Context

	// AcquireDone is called when a call that acquires a lock ends, whether or not it acquired the
	// lock.
	AcquireDone func(ctx context.Context, e AcquireDone)

	// ReleaseDone is called when an unlock of a hold has ended, and at [Client.Close] for each hold
	// that hasn't been released.
	ReleaseDone func(ctx context.Context, e ReleaseDone)

	// Lost is called when a hold is lost, after its context has ended. The function may keep the
	// Loss, but must not modify it.
	Lost func(l *Loss)

	// RenewDone is called when a round of renewals ends.
	RenewDone func(e RenewDone)

	// StepDone is called at the end of a request to the store (a step): when the store or its
	// client library has answered, or when the caller has stopped waiting.
	StepDone func(ctx context.Context, e StepDone)

	// Subscription is called when the client's subscription to releases breaks or can't be
	// established. It is called again when, as far as the store knows, the subscription is active
	// again.
	Subscription func(e SubscriptionChange)
}

// AcquireStart describes the beginning of a call that acquires a lock.
type AcquireStart struct {
	Name    string
	Kind    backend.Kind
	Permits int // of a Semaphore
}

// AcquireDone describes the end of a call that acquires a lock.
type AcquireDone struct {
	Name     string
	Kind     backend.Kind
	Permits  int    // of a Semaphore
	HolderID string // empty if not acquired; see [Hold.HolderID]
	Outcome  Outcome
	Via      Via           // meaningful if the lock was acquired
	Waited   time.Duration // from the call to its end
	Err      error         // nil if the lock was acquired
}

// Outcome is how an acquiring call ended.
type Outcome uint8

// Outcomes of acquiring calls.
const (
	OutcomeAcquired Outcome = iota
	OutcomeTimeout          // someone else still held the lock when the wait ended
	OutcomeCanceled         // the context ended
	OutcomeFailed           // the store or this package failed
)

// Former names of the outcomes of acquiring calls. They are unclear without a prefix.
//
// Deprecated: Use the constants that begin with Outcome.
const (
	Acquired    = OutcomeAcquired
	NotAcquired = OutcomeTimeout
	Canceled    = OutcomeCanceled
	Failed      = OutcomeFailed
)

// String returns the name of the outcome: "acquired", "timeout", "canceled" or "error".
func (o Outcome) String() string {
	return [...]string{"acquired", "timeout", "canceled", "error"}[o]
}

// Via says how a caller acquired a lock.
type Via uint8

// Ways in which a lock is acquired.
const (
	ViaStore    Via = iota // the store was asked
	ViaHandover            // another goroutine of this client handed it over
	ViaReentry             // the caller's owner already held it
	ViaJoined              // other readers of this client held it
	ViaGranted             // the store granted it in line order
	vias
)

// String returns one word for how the lock was acquired: "store", "handover", "reentry", "joined"
// or "granted".
func (v Via) String() string {
	return [...]string{"store", "handover", "reentry", "joined", "granted"}[v]
}

// ReleaseDone describes the end of an unlock.
type ReleaseDone struct {
	Name     string
	Kind     backend.Kind
	HolderID string
	Outcome  ReleaseOutcome
	Held     time.Duration // from acquisition to start of the unlock
	Took     time.Duration // how long the unlock took
	Err      error
}

// ReleaseOutcome is how an unlock ended.
type ReleaseOutcome uint8

// UnlockOutcome is an alias of ReleaseOutcome. Its name can't be confused with that of
// backend.ReleaseOutcome, which is a different type.
type UnlockOutcome = ReleaseOutcome

// Outcomes of unlocks.
const (
	UnlockReleased    ReleaseOutcome = iota // the store was asked; see also AtLeast
	UnlockHandedOn                          // to another goroutine of this client
	UnlockStillHeld                         // the owner still has other holds
	UnlockAlreadyLost                       // Lost was called for the hold
	UnlockFailed                            // unconfirmed; continues in the background
	UnlockForsaken                          // the client was closed; see Close
)

// Former names of the outcomes of unlocks. They are unclear without a prefix.
//
// Deprecated: Use the constants that begin with Unlock.
const (
	Released      = UnlockReleased
	HandedOn      = UnlockHandedOn
	StillHeld     = UnlockStillHeld
	AlreadyLost   = UnlockAlreadyLost
	ReleaseFailed = UnlockFailed
	Forsaken      = UnlockForsaken
)

// String returns the name of the outcome: "released", "handover", "held", "lost", "error" or
// "closed".
func (o ReleaseOutcome) String() string {
	return [...]string{"released", "handover", "held", "lost", "error", "closed"}[o]
}

// RenewDone describes the end of a round of renewals.
type RenewDone struct {
	Locks, Failed int // renewals that were due, and failed ones
	Took          time.Duration
	Err           error // the first of the errors
}

// StepDone describes the end of a step, which is a request to the store.
type StepDone struct {
	Op   string // acquire, release, renew, forcerelease, look, keepplaces, latch, inspect or list
	Name string // empty for a renewal of several locks
	Kind backend.Kind
	Took time.Duration
	Err  error
}

// SubscriptionChange says that a subscription broke or is active again.
type SubscriptionChange struct {
	Name string
	Kind backend.Kind
	Up   bool
	Err  error // why it broke
}

// WithTrace makes the client call the functions of t. If there are several traces, they are called
// in the order of the options. The default is none. Later changes to t have no effect.
func WithTrace(t *Trace) Option {
	return func(c *Client) error {
		if t == nil {
			return errors.New("the trace is nil")
		}
		c.traces = append(c.traces, *t)
		return nil
	}
}

// traces holds the traces of a client, in the order of the options.
type traces []Trace

// counts holds the counters of [Client.Stats].
type counts struct {
	acquired        [vias]counter
	outcomes        [Failed + 1]counter
	released        counter
	renewed, failed counter
}

// begins calls the traces' AcquireStart functions in order, each with the context that the previous
// one returned. It returns the last context.
func (a *acquisition) begins(ctx context.Context) context.Context {
	for i := range a.client.traces {
		if f := a.client.traces[i].AcquireStart; f != nil {
			ctx = f(ctx, AcquireStart{a.name, backend.Kind(a.kind), a.o.permits})
		}
	}
	return ctx
}

// ends reports the outcome of an acquiring call to the traces, the log and the counters.
func (a *acquisition) ends(ctx context.Context, h *hold, err error) {
	c := a.client
	outcome := outcomeOf(ctx, err)
	if c.counts.outcomes[outcome].Add(1); outcome == Acquired {
		c.counts.acquired[a.via].Add(1)
	}
	if a.o.site != 0 && h != nil {
		c.mu.Lock()
		h.site = cmp.Or(h.site, a.o.site)
		c.mu.Unlock()
	}
	debug := c.log.logger.Enabled(ctx, slog.LevelDebug)
	if len(c.traces) == 0 && !debug {
		return
	}
	e := AcquireDone{
		Name: a.name, Kind: backend.Kind(a.kind), Permits: a.o.permits, Outcome: outcome,
		Via: a.via, Waited: c.now() - a.began, Err: err,
	}
	end := func() {}
	if h != nil {
		e.HolderID, end = h.claim.owner, h.traceEnd(c, &e)
	}
	for i := range c.traces {
		if f := c.traces[i].AcquireDone; f != nil {
			f(ctx, e)
		}
	}
	end()
	if debug {
		c.debug("lock", "name", e.Name, "kind", e.Kind.String(), "holder", e.HolderID,
			"outcome", e.Outcome.String(), "via", e.Via.String(), "waited", e.Waited, "err", err)
	}
}

// traceEnd makes sure that the end of a hold is reported to the traces. If the hold has already
// ended, traceEnd returns a function that reports the end.
func (h *hold) traceEnd(c *Client, e *AcquireDone) (end func()) {
	s := c.lock()
	defer c.unlock()
	switch {
	case e.Via == ViaReentry:
	case h.state == lost:
		l := h.watchers.loss
		return func() { c.traces.lost(l) }
	case h.state == forsaken:
		forsaken := h.forsakenEvent(s)
		return func() { c.traces.releaseDone(context.Background(), forsaken) }
	case h.state == released:
		e.Via = ViaReentry // this call got another reader's hold instead
	default:
		h.told = true
	}
	return func() {}
}

// forsakenEvent returns the event for a hold that wasn't released before Close.
func (h *hold) forsakenEvent(s *state) ReleaseDone {
	return ReleaseDone{
		Name: h.claim.object.name, Kind: backend.Kind(h.kind), HolderID: h.claim.owner,
		Outcome: UnlockForsaken, Held: s.now() - h.since(), Err: ErrClosed,
	}
}

// outcomeOf returns the Outcome that corresponds to the error of an acquiring call.
func outcomeOf(ctx context.Context, err error) Outcome {
	switch {
	case err == nil:
		return OutcomeAcquired
	case ctx.Err() != nil && !errors.Is(err, ErrNotAcquired) &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		return OutcomeCanceled
	case errors.Is(err, ErrNotAcquired) && !errors.Is(err, ErrUnavailable):
		return OutcomeTimeout
	default:
		return OutcomeFailed
	}
}

// releaseDone reports an unlock, or a hold that hadn't been released at Close.
func (all traces) releaseDone(ctx context.Context, e ReleaseDone) {
	for i := range all {
		if f := all[i].ReleaseDone; f != nil {
			f(ctx, e)
		}
	}
}

// setOutcome sets the outcome of a hold's release, and reports whether to tell the traces. If Close
// has already told them, it returns false. If several releases race, only one of them counts as the
// last.
func (h *hold) setOutcome(c *Client, e *ReleaseDone, handed bool) bool {
	s := c.lock()
	defer c.unlock()
	switch {
	case errors.Is(e.Err, ErrLost):
		e.Outcome = AlreadyLost
		return h.watchers != nil && h.watchers.loss != nil // otherwise Close has told them
	case !h.told, h.state != released && (e.Err == nil || e.Err == errPanicked):
		e.Outcome = StillHeld
		return !s.closed
	case e.Err != nil:
		e.Outcome = ReleaseFailed
	case handed:
		e.Outcome = HandedOn
	}
	h.told = false
	return true
}

// lost reports a loss.
func (all traces) lost(l *Loss) {
	for i := range all {
		if f := all[i].Lost; f != nil {
			f(l)
		}
	}
}

// roundDone reports a round of renewals to the traces.
func (c *Client) roundDone(e RenewDone) {
	c.counts.renewed.Add(uint64(e.Locks - e.Failed))
	c.counts.failed.Add(uint64(e.Failed))
	for i := range c.traces {
		if f := c.traces[i].RenewDone; f != nil {
			f(e)
		}
	}
}

// stepDone reports a step, and how long it took.
func (all traces) stepDone(ctx context.Context, req any, took time.Duration, err error) {
	e := StepDone{Took: took, Err: err}
	switch r := req.(type) {
	case backend.AcquireRequest:
		e.Op, e.Name, e.Kind = "acquire", r.Name, r.Kind
	case backend.ReleaseRequest:
		e.Op, e.Name, e.Kind = "release", r.Name, r.Kind
	case backend.RenewRequest:
		e.Op, e.Name, e.Kind = "renew", r.Name, r.Kind
	case []backend.RenewRequest:
		e.Op = "renew"
	case backend.ForceReleaseRequest:
		e.Op, e.Name, e.Kind = "forcerelease", r.Name, r.Kind
	case backend.LookRequest:
		e.Op, e.Name, e.Kind = "look", r.Name, r.Kind
	case backend.PlacesRequest:
		e.Op, e.Name, e.Kind = "keepplaces", r.Name, r.Kind
	case backend.LatchRequest:
		e.Op, e.Name, e.Kind = "latch", r.Name, backend.Latch
	case backend.InspectRequest:
		e.Op, e.Name = "inspect", r.Name
	case backend.ListRequest:
		e.Op = "list"
	}
	for i := range all {
		if f := all[i].StepDone; f != nil {
			f(ctx, e)
		}
	}
}

// subscriptionChanged reports to the traces that the subscription of a queue broke, or is active
// again.
func (q *queue) subscriptionChanged(c *Client, broken error) {
	if len(c.traces) == 0 {
		return
	}
	kind := q.object.family.Representative()
	if q.placed {
		kind = backend.Fair
	}
	for i := range c.traces {
		if f := c.traces[i].Subscription; f != nil {
			f(SubscriptionChange{Name: q.object.name, Kind: kind, Up: broken == nil, Err: broken})
		}
	}
}

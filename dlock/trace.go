package dlock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Trace has functions that are called when something happens in a client, like net/http/httptrace,
// for metrics, spans and logs. Any of them may be nil. They are called in the goroutine in which it
// happened, at any time and concurrently, and delay that goroutine, even one that renews locks. So
// they must not block or panic (which may end the program), and must not use the client. Without a
// Trace nothing is called or allocated.
//
// A hold that AcquireDone told of, with Acquired and not [ViaReentry], ends with exactly one of
// these: Lost, or ReleaseDone with [Released], [HandedOn], [ReleaseFailed] or [Forsaken]. Events of
// several goroutines at about the same time come in any order: the end of a short hold may be told
// before its beginning.
type Trace struct {
	// AcquireStart is called when a call begins to acquire. It returns its context, or one derived
	// from it, for a span. Steps of the store, and AcquireDone, get that context. The context of
	// the Hold isn't derived from it.
	AcquireStart func(ctx context.Context, e AcquireStart) context.Context

	// AcquireDone is called when such a call ends.
	AcquireDone func(ctx context.Context, e AcquireDone)

	// ReleaseDone is called when an unlock ends that had something to give back, and at
	// [Client.Close] for what is held.
	ReleaseDone func(ctx context.Context, e ReleaseDone)

	// Lost is called when a hold is lost, after its context has ended. The Loss may be kept, but
	// not changed.
	Lost func(l *Loss)

	// RenewDone is called when a round of renewals ends.
	RenewDone func(e RenewDone)

	// StepDone is called when the store, or its client, has answered a step, or the caller has left
	// it.
	StepDone func(ctx context.Context, e StepDone)

	// Subscription is called when the client's subscription to releases breaks or can't be had, and
	// when it stands again, as far as the store knows.
	Subscription func(e SubscriptionChange)
}

// AcquireStart is the beginning of a call that acquires.
type AcquireStart struct {
	Name    string
	Kind    backend.Kind
	Permits int // of a Semaphore
}

// AcquireDone is the end of a call that acquires.
type AcquireDone struct {
	Name     string
	Kind     backend.Kind
	Permits  int    // of a Semaphore
	HolderID string // see [Hold.HolderID]; empty unless it was acquired
	Outcome  Outcome
	Via      Via           // if it was acquired
	Waited   time.Duration // from the call to its end
	Err      error         // nil if it was acquired
}

// Outcome is how an acquiring call ended.
type Outcome uint8

// Outcomes of calls that acquire.
const (
	OutcomeAcquired Outcome = iota
	OutcomeTimeout          // another has it, and the time to wait was over
	OutcomeCanceled         // the context ended
	OutcomeFailed           // the store, or this package, returned an error
)

// Names of outcomes that say nothing where they are read.
//
// Deprecated: use the constants that begin with Outcome.
const (
	Acquired    = OutcomeAcquired
	NotAcquired = OutcomeTimeout
	Canceled    = OutcomeCanceled
	Failed      = OutcomeFailed
)

// String returns the outcome in a word: "acquired", "timeout", "canceled" or "error".
func (o Outcome) String() string { return [...]string{"acquired", "timeout", "canceled", "error"}[o] }

// Via is how a caller got a lock.
type Via uint8

// Ways to a lock.
const (
	ViaStore    Via = iota // the store was asked
	ViaHandover            // another goroutine of this client handed it over
	ViaReentry             // the caller's owner had it already
	ViaJoined              // other readers of this client had it
	ViaGranted             // the store gave it to the first in line
	vias
)

// String returns the way in a word: "store", "handover", "reentry", "joined" or "granted".
func (v Via) String() string {
	return [...]string{"store", "handover", "reentry", "joined", "granted"}[v]
}

// ReleaseDone is the end of an unlock.
type ReleaseDone struct {
	Name     string
	Kind     backend.Kind
	HolderID string
	Outcome  ReleaseOutcome
	Held     time.Duration // from the acquisition to the beginning of the unlock
	Took     time.Duration // the unlock
	Err      error
}

// ReleaseOutcome is how an unlock ended.
type ReleaseOutcome uint8

// UnlockOutcome is another name of ReleaseOutcome, which in package backend is something else.
type UnlockOutcome = ReleaseOutcome

// Outcomes of unlocks.
const (
	UnlockReleased    ReleaseOutcome = iota // in the store; it may stay taken for a while, see AtLeast
	UnlockHandedOn                          // to another goroutine of this client
	UnlockStillHeld                         // the owner has other holds of the lock
	UnlockAlreadyLost                       // Lost was called for it
	UnlockFailed                            // the store didn't confirm it; it goes on in the background
	UnlockForsaken                          // the client was closed; it ends with its lease, or an unlock
)

// Names of outcomes that say nothing where they are read.
//
// Deprecated: use the constants that begin with Unlock.
const (
	Released      = UnlockReleased
	HandedOn      = UnlockHandedOn
	StillHeld     = UnlockStillHeld
	AlreadyLost   = UnlockAlreadyLost
	ReleaseFailed = UnlockFailed
	Forsaken      = UnlockForsaken
)

// String returns the outcome in a word: "released", "handover", "held", "lost", "error" or "closed".
func (o ReleaseOutcome) String() string {
	return [...]string{"released", "handover", "held", "lost", "error", "closed"}[o]
}

// RenewDone is the end of a round of renewals.
type RenewDone struct {
	Locks, Failed int // how many were to be renewed, and how many of them the store didn't answer
	Took          time.Duration
	Err           error // the first of the errors
}

// StepDone is the end of a step of the store.
type StepDone struct {
	Op   string // acquire, release, renew, forcerelease, look, keepplaces, latch, inspect or list
	Name string // empty for a renewal of several locks
	Kind backend.Kind
	Took time.Duration
	Err  error
}

// SubscriptionChange says that a subscription broke or stands again.
type SubscriptionChange struct {
	Name string
	Kind backend.Kind
	Up   bool
	Err  error // why it broke
}

// WithTrace has the client call the functions of t. Several may be set; they are called in that
// order. The default is none. Later changes of t make no difference.
func WithTrace(t *Trace) Option {
	return func(c *Client) error {
		if t == nil {
			return errors.New("the trace is nil")
		}
		c.traces = append(c.traces, *t)
		c.tracesSteps = c.tracesSteps || t.StepDone != nil
		return nil
	}
}

// counts are what [Client.Stats] says.
type counts struct {
	acquired        [vias]counter
	outcomes        [Failed + 1]counter
	released, lost  counter
	renewed, failed counter
}

// begins tells that a call begins to acquire.
func (c *Client) begins(ctx context.Context, a *acquisition) context.Context {
	for i := range c.traces {
		if f := c.traces[i].AcquireStart; f != nil {
			ctx = f(ctx, AcquireStart{a.name, a.kind, a.o.permits})
		}
	}
	return ctx
}

// acquired tells how a call that acquires has ended.
func (c *Client) acquired(ctx context.Context, a *acquisition, h *hold, err error) {
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
	e := AcquireDone{Name: a.name, Kind: a.kind, Permits: a.o.permits, Outcome: outcome, Via: a.via, Waited: c.now() - a.began, Err: err}
	end := func() {}
	if h != nil {
		e.HolderID, end = h.claim.owner, c.tell(h, &e)
	}
	for i := range c.traces {
		if f := c.traces[i].AcquireDone; f != nil {
			f(ctx, e)
		}
	}
	end()
	if debug {
		c.debug("lock", "name", e.Name, "kind", e.Kind.String(), "holder", e.HolderID, "outcome", e.Outcome.String(), "via", e.Via.String(), "waited", e.Waited, "err", err)
	}
}

// tell notes that others hear of a hold. It returns what they are to hear next: if it has ended by now, of that.
func (c *Client) tell(h *hold, e *AcquireDone) (end func()) {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case e.Via == ViaReentry:
	case h.state == lost:
		l := h.watchers.loss
		return func() { c.traceLost(l) }
	case h.state == forsaken:
		forsaken := c.forsakenLocked(h)
		return func() { c.traceRelease(context.Background(), forsaken) }
	case h.state == released:
		e.Via = ViaReentry // other readers of the same Locker have given this back, and it has theirs
	default:
		h.told = true
	}
	return func() {}
}

// forsakenLocked is what is told of a hold that wasn't released before Close.
func (c *Client) forsakenLocked(h *hold) ReleaseDone {
	return ReleaseDone{h.claim.object.name, h.kind, h.claim.owner, UnlockForsaken, c.now() - h.since(), 0, ErrClosed}
}

// outcomeOf returns what an error of a call that acquires says.
func outcomeOf(ctx context.Context, err error) Outcome {
	switch {
	case err == nil:
		return OutcomeAcquired
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) && !errors.Is(err, ErrNotAcquired):
		return OutcomeCanceled
	case errors.Is(err, ErrNotAcquired) && !errors.Is(err, ErrUnavailable):
		return OutcomeTimeout
	default:
		return OutcomeFailed
	}
}

// giveUpHold gives back one hold for a caller.
func (c *Client) giveUpHold(ctx context.Context, h *hold) error {
	debug := c.log.logger.Enabled(ctx, slog.LevelDebug)
	if len(c.traces) == 0 && !debug {
		err := c.explained(h, c.releaseUntold(ctx, h))
		if err != errAgain {
			c.counts.released.Add(1)
		}
		return err
	}
	e, tell := c.releaseTold(ctx, h)
	return c.gaveUp(ctx, e, tell, debug)
}

// gaveUp tells how an unlock went.
func (c *Client) gaveUp(ctx context.Context, e ReleaseDone, tell, debug bool) error {
	if e.Err == errAgain {
		return e.Err
	}
	c.counts.released.Add(1)
	if tell {
		c.traceRelease(ctx, e)
	}
	if debug {
		c.debug("unlock", "name", e.Name, "kind", e.Kind.String(), "holder", e.HolderID, "outcome", e.Outcome.String(), "held", e.Held, "err", e.Err)
	}
	return e.Err
}

// release gives back one hold that nobody's call gives back, or not any more. Plain readers of one
// Locker can't be told apart: another of them may have given it back, and it is one of those that
// are left, then. It is errAgain if none is.
func (c *Client) release(ctx context.Context, h *hold) error {
	for {
		err := c.releaseQuietly(ctx, h)
		v := h.variable()
		if err != errAgain || v == nil || !rules[h.kind].shared {
			return err
		}
		c.mu.Lock()
		h, err = c.plainSharedLocked(h.claim.object.key(), h.kind, v)
		c.mu.Unlock()
		if h == nil {
			return cmp.Or(err, errAgain)
		}
	}
}

func (c *Client) releaseQuietly(ctx context.Context, h *hold) error {
	if len(c.traces) == 0 {
		return c.releaseUntold(ctx, h)
	}
	e, tell := c.releaseTold(ctx, h)
	if tell && e.Outcome != StillHeld && e.Outcome != AlreadyLost {
		c.traceRelease(ctx, e)
	}
	return e.Err
}

// releaseTold gives back one hold, and says how that went and whether it is to be told.
func (c *Client) releaseTold(ctx context.Context, h *hold) (e ReleaseDone, tell bool) {
	e = ReleaseDone{Name: h.claim.object.name, Kind: h.kind, HolderID: h.claim.owner, Err: errPanicked}
	c.mu.Lock()
	since := h.since()
	c.mu.Unlock()
	began, handed := c.now(), false
	defer func() {
		if e.Err == errAgain {
			return
		}
		e.Held, e.Took = began-since, c.now()-began
		if tell = c.ended(h, &e, handed); tell && e.Err == errPanicked {
			c.traceRelease(ctx, e) // nobody else will
		}
	}()
	if handed = c.handOn(h); handed {
		e.Err = nil
	} else {
		e.Err = c.explained(h, c.releaseToStore(ctx, h))
	}
	return
}

func (c *Client) traceRelease(ctx context.Context, e ReleaseDone) {
	for i := range c.traces {
		if f := c.traces[i].ReleaseDone; f != nil {
			f(ctx, e)
		}
	}
}

// ended says how a release of a hold went, and whether that is to be told: Close has told of what was held then. Of those that race only
// one is the last.
func (c *Client) ended(h *hold, e *ReleaseDone, handed bool) bool {
	c.mu.Lock()
	defer c.unlock()
	switch {
	case errors.Is(e.Err, ErrLost):
		e.Outcome = AlreadyLost
		return h.watchers != nil && h.watchers.loss != nil // else Close has told of it
	case !h.told, h.state != released && (e.Err == nil || e.Err == errPanicked):
		e.Outcome = StillHeld
		return !c.closed
	case e.Err != nil:
		e.Outcome = ReleaseFailed
	case handed:
		e.Outcome = HandedOn
	}
	h.told = false
	return true
}

// traceLost tells of a loss.
func (c *Client) traceLost(l *Loss) {
	for i := range c.traces {
		if f := c.traces[i].Lost; f != nil {
			f(l)
		}
	}
}

// roundDone tells of a round of renewals.
func (c *Client) roundDone(e RenewDone) {
	c.counts.renewed.Add(uint64(e.Locks - e.Failed))
	c.counts.failed.Add(uint64(e.Failed))
	for i := range c.traces {
		if f := c.traces[i].RenewDone; f != nil {
			f(e)
		}
	}
}

// stepDone tells of a step that began at that instant.
func (c *Client) stepDone(ctx context.Context, req any, began instant, err error) {
	e := StepDone{Took: c.now() - began, Err: err}
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
	for i := range c.traces {
		if f := c.traces[i].StepDone; f != nil {
			f(ctx, e)
		}
	}
}

// subscriptionChanged tells that the subscription of a queue broke, or stands again.
func (c *Client) subscriptionChanged(q *queue, broken error) {
	if len(c.traces) == 0 {
		return
	}
	kind := q.object.family.representative()
	if q.placed {
		kind = backend.Fair
	}
	for i := range c.traces {
		if f := c.traces[i].Subscription; f != nil {
			f(SubscriptionChange{Name: q.object.name, Kind: kind, Up: broken == nil, Err: broken})
		}
	}
}

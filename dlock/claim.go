package dlock

import (
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
)

// A hold is one party's possession of a lock, on the basis of a claim. It begins when the party
// gets the lock, and ends when its last unlock begins or the lock is lost.
type hold struct {
	claim *claim // the claim that the hold rests on
	party party
	slot  chan struct{} // full during a re-entry or release; nil if not needed
	kind  protocol.Kind

	// Client.mu guards the rest.
	state       holdState
	offered     bool          // offered to a call that hasn't accepted it; it can't be unlocked yet
	told        bool          // whether its end must be reported to the traces
	site        site          // the place that acquired it
	count       int32         // unlocks left until it ends; the store's count may differ
	renewedFrom int32         // the hold is renewed while count is at least this; if 0, never
	later       time.Duration // how long after its claim the hold began
	watchers    *watchers     // nil if nothing waits for its end
}

// watchers are notified when a hold ends.
type watchers struct {
	over     []*notice              // notices to give when the hold is lost or the client is closed
	contexts map[*lifeline]struct{} // contexts that end with the hold
	loss     *Loss                  // nil if it isn't lost
}

// A notice tells its listeners that a hold was lost or the client was closed. If several holds
// share a notice, it is given when the first of them is lost.
type notice struct {
	over  chan struct{} // closed when it is given
	given bool
}

func (n *notice) give() {
	if !n.given {
		n.given = true
		close(n.over)
	}
}

// A claim is what an acquisition requests from the store, and what the store then grants, under one
// owner string. Each outermost acquisition makes a new claim, so that a late request of an earlier
// acquisition can't affect it. The holds of several parties can rest on one claim: readers share
// it, and other parties take it over from one another (see [hold.handOn]).
type claim struct {
	object *object
	owner  string // in the store

	// Client.mu guards the fields below. Only the method [protocol.Promise.Until] may be called
	// without it.
	protocol.Promise
	began   instant // when the granted request was sent
	alarm   alarm
	kind    protocol.Kind
	handed  bool   // whether it was handed over between holders of this client
	back    bool   // whether a background release is in progress
	noted   bool   // whether the store might list the owner string as waiting
	leaving bool   // its last release is under way
	dead    bool   // its last release has begun, or it was lost, so it isn't used any more
	after   uint32 // how many attempts the client had made when this was granted; wraps around
	more    *more  // nil for plain locks
}

// more contains the fields that only some kinds of claim need.
type more struct {
	token uint64 // the fencing token; 0 if there is none

	holds int    // the number of holds that share the claim and aren't released
	joins uint64 // the number of joins so far
	lent  alarm  // rings when readers can no longer share the write lock
	under *hold  // for a read lock taken under a write: the write hold, until it ends
	inner *claim // for a write lock: the claim of the reads under it, even after they end
	other *claim // during a downgrade: a claim that the store might list instead of this one

	permit // of a semaphore

	noted bool // the owner string contains a HolderNote, so no other call may join

}

type holdState uint8

const (
	live     holdState = iota
	released           // its last release has begun
	lost               // ended before it was released
	forsaken           // not released when the client was closed; can still be unlocked
)

// newHold returns a party's hold on a claim.
func newHold(p party, kind protocol.Kind, cl *claim) *hold {
	h := new(hold)
	h.rest(p, kind, cl)
	return h
}

func (h *hold) rest(p party, kind protocol.Kind, cl *claim) {
	h.claim, h.party, h.kind = cl, p, kind
	if h.variable() == nil && !kind.Shared() && !kind.Many() {
		h.slot = make(chan struct{}, 1)
	}
}

// valid reports whether the hold can be relied on now.
func (h *hold) valid(now instant) bool { return h.state == live && now < h.claim.Until() }

// token returns the fencing token of a hold, or 0. It needs no mutex.
func (h *hold) token() uint64 {
	if !h.kind.Numbered() {
		return 0
	}
	return h.claim.token()
}

// since returns when the hold began.
func (h *hold) since() instant { return h.claim.began + h.later }

// beginsLater records that the hold begins now, later than its claim. It returns the hold.
func (h *hold) beginsLater(now instant) *hold {
	h.later = max(now-h.claim.began, 0)
	return h
}

// variable returns the hold's party if that is a *variable, which stands for the plain calls of a
// Locker. For other holds it returns nil.
func (h *hold) variable() *variable {
	v, _ := h.party.(*variable)
	return v
}

// watched returns the watchers of a hold, and creates them if there are none.
func (h *hold) watched() *watchers {
	if h.watchers == nil {
		h.watchers = new(watchers)
	}
	return h.watchers
}

// tell notifies everything that waits for the end of a hold, and ends the hold's contexts.
func (h *hold) tell(s *state, cause error) {
	h.giveNotices()
	h.endContexts(s, cause)
}

// giveNotices closes the channels that report the end of a hold.
func (h *hold) giveNotices() {
	if h.watchers == nil {
		return
	}
	for _, n := range h.watchers.over {
		n.give()
	}
}

// endContexts ends the contexts of a hold.
func (h *hold) endContexts(s *state, cause error) {
	if h.watchers == nil {
		return
	}
	for line := range h.watchers.contexts {
		s.later(func() { line.cancel(cause) })
	}
	h.watchers.contexts = nil
}

// passes reports whether a claim may be handed over to another holder, or joined. The caller must
// also check the hand-over time.
func (cl *claim) passes(now instant) bool { return !cl.dead && cl.Passes(now) }

// suits reports whether the claim satisfies the options of an acquisition. The caller must also
// compare the kinds.
func (cl *claim) suits(a *acquisition) bool {
	return !a.o.fixed && !a.o.keeps && !a.o.noted && a.o.lease == cl.Lease()
}

// token returns the claim's fencing token, or 0.
func (cl *claim) token() uint64 {
	if cl.more == nil {
		return 0
	}
	return cl.more.token
}

// permits returns the number of permits that a claim asks for, and the semaphore's limit.
func (cl *claim) permits() (n, limit int) {
	if !cl.kind.Many() {
		return 0, 0
	}
	return cl.more.many, cl.more.limit
}

// Requests to the store about a claim.

func (cl *claim) acquireRequest(lease time.Duration, reentry bool) backend.AcquireRequest {
	req := backend.AcquireRequest{
		Kind: backend.Kind(cl.kind), Name: cl.object.name, Owner: cl.owner, Lease: lease,
		Reentry: reentry,
	}
	req.Permits, req.Limit = cl.permits()
	return req
}

func (cl *claim) renewRequest(lease time.Duration) backend.RenewRequest {
	n, _ := cl.permits()
	return backend.RenewRequest{
		Kind: backend.Kind(cl.kind), Name: cl.object.name, Owner: cl.owner, Lease: lease,
		Permits: n,
	}
}

// lookRequest returns the request that asks the store whether the claim still exists. The store
// might have forgotten the semaphore's limit together with the claim, so the request specifies the
// claim's own number of permits as the limit.
func (cl *claim) lookRequest() backend.LookRequest {
	req := backend.LookRequest{Kind: backend.Kind(cl.kind), Name: cl.object.name, Owner: cl.owner}
	n, _ := cl.permits()
	req.Permits, req.Limit = n, n
	return req
}

func (cl *claim) releaseRequest(lease time.Duration, ask bool) backend.ReleaseRequest {
	n, _ := cl.permits()
	return backend.ReleaseRequest{
		Kind: backend.Kind(cl.kind), Name: cl.object.name, Owner: cl.owner, Lease: lease,
		AskWaiting: ask, Permits: n,
	}
}

// lastRelease returns the request for the last release of a claim. If the lock must stay taken for
// a while, the request says so. That is also needed when a release is repeated because the store's
// count was higher than the client's.
func (cl *claim) lastRelease(set *settings, lease time.Duration, ask bool) backend.ReleaseRequest {
	req := cl.releaseRequest(lease, ask)
	if left := cl.Left(set.now()); left > 0 {
		req.Keep, req.AskWaiting = kept(left), false
		req.Lease = max(lease, set.stored(left))
	}
	return req
}

// nextLook returns the time at which the watchdog next looks at a claim. The parameter sent is the
// time at which the granted request was sent.
func (cl *claim) nextLook(s *state, sent instant) instant {
	switch {
	case cl.GoesOn():
		return cl.nextRenewal(s, sent, 3)
	case cl.kind.Asserted():
		return min(sent+s.lease/3, cl.Until())
	default:
		return cl.Until()
	}
}

// nextRenewal returns the time of the first renewal after the given instant, which is about 1/part
// of the lease later.
func (cl *claim) nextRenewal(s *state, after instant, part time.Duration) instant {
	most := cl.Lease()
	if cl.kind.Asserted() {
		most = s.lease // even if its own lease is longer
	}
	return cl.Next(after, part, most)
}

// prolong records that the store granted a re-entry or a partial release. The parameters are the
// time when the request was sent, the lease that renewals ask for from now on, and the lease that
// the request asked for.
func (h *hold) prolong(s *state, sent instant, lease, asked time.Duration) {
	cl := h.claim
	cl.StepGranted(sent, lease, asked)
	s.schedule(&cl.alarm, cl.nextLook(s, sent))
}

// endRenewal ends the renewal that a reader's re-entry began, so that the claim has a fixed lease
// again.
func (h *hold) endRenewal(s *state) {
	cl, now := h.claim, s.now()
	h.renewedFrom = 0
	cl.EndRenewal(now)
	s.schedule(&cl.alarm, cl.nextLook(s, now))
}

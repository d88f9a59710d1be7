package dlock

import (
	"context"
	"slices"
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

// Limits on how long lost holds are remembered.
const (
	maxLosses  = 1024 // the maximum number of lost holds remembered until they are unlocked
	lossMemory = 10   // how long each of them is remembered, in leases
)

// valid reports whether the hold can be relied on now.
func (h *hold) valid(now instant) bool { return h.state == live && now < h.claim.Until() }

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

// grant records that the store has granted the claim of a hold. It returns the hold.
func (h *hold) grant(s *state, sent instant) *hold {
	cl := h.claim
	cl.began = sent
	cl.alarm.task = cl
	cl.after = uint32(s.attempts)
	cl.supersede(s)
	o := s.open(cl.object)
	cl.object = o
	if cl.kind.Shared() {
		h.grantShared(s, o)
	} else {
		h.count = 1
		if cl.Renewed() {
			h.renewedFrom = 1
		}
		h.install(s)
	}
	s.schedule(&cl.alarm, cl.nextLook(s, sent))
	return h
}

// supersede ends this client's claims that can't coexist with cl, which the store has just granted.
func (cl *claim) supersede(s *state) {
	for _, mine := range s.object(cl.kind, cl.object.name).rivals(cl) {
		mine.lose(s, takenBy(cl.owner))
	}
}

// rivals returns this client's claims that can't coexist with cl in the store. Some of them might
// no longer be valid.
func (o *object) rivals(cl *claim) (all []*claim) {
	if o == nil || cl.kind.Many() {
		return nil
	}
	if o.alone == nil || o.alone != cl.retain() {
		if mine := o.passing(); mine != nil {
			all = append(all, mine)
		}
	}
	if cl.kind.Shared() {
		return all
	}
	for _, h := range o.readers() {
		all = append(all, h.claim)
	}
	if o.reading != nil && o.reading.young != nil {
		all = append(all, o.reading.young) // the claim of a reader that is leaving
	}
	return all
}

// overtaken reports whether another attempt of this client acquired the lock while a's attempt was
// under way. The store might have granted either attempt first, so it is unknown which of the two
// claims was lost. If there is such an attempt, overtaken asks the store about its claim, and the
// caller must make a new attempt for a.
func (a *acquisition) overtaken(s *state) (overtaken bool) {
	now := s.now()
	for _, mine := range s.object(a.kind, a.name).rivals(a.h.claim) {
		if int32(mine.after-uint32(a.attempt)) >= 0 && !mine.dead && now < mine.Until() {
			mine.look(s)
			overtaken = true
		}
	}
	return overtaken
}

// begunSince reports whether this client holds the lock that the acquisition waits for, and got it
// with a request that was sent after the given time.
func (a *acquisition) begunSince(s *state, since instant) bool {
	now := s.now()
	return slices.ContainsFunc(a.in.object.rivals(a.h.claim), func(mine *claim) bool {
		return mine.began > since && !mine.dead && now < mine.Until()
	})
}

// install adds a hold to the client's tables. Waiting calls of the same party can then re-enter the
// hold, unless it is a hold of permits.
func (h *hold) install(s *state) {
	h.claim.object.keep(h)
	if h.kind.Many() {
		return
	}
	if v := h.variable(); v != nil {
		v.hold = h
		return
	}
	h.claim.object.mark(s, markEntered)
}

// current returns p's hold of the given kind, or nil.
func (o *object) current(s *state, kind protocol.Kind, p party) *hold {
	if o == nil {
		return nil
	}
	h := o.alone
	if kind.Shared() {
		h = o.reader(p)
	}
	if h == nil || h.party != p || h.kind != kind || !h.check(s) {
		return nil
	}
	return h
}

// lossError returns the error that says how a hold was lost, or nil if it wasn't lost. The contexts
// of the hold end with this error as their cause.
func (h *hold) lossError(c *Client) error {
	s := c.lock()
	defer c.unlock()
	if h.check(s) || h.state != lost {
		return nil
	}
	return h.ended()
}

// check reports whether a hold can be relied on now. It marks an expired hold as lost.
func (h *hold) check(s *state) bool {
	now := s.now()
	if h.valid(now) {
		return true
	}
	if h.state == live {
		h.lose(s, h.claim.ranOut(s, now))
	}
	return false
}

// lose marks a hold, and all others that share its claim, as lost. It notifies their watchers.
func (h *hold) lose(s *state, w why) {
	if h.state != live {
		return
	}
	h.claim.lose(s, w)
}

// lose marks a claim, and all holds that rest on it, as lost.
func (cl *claim) lose(s *state, w why) {
	if cl.dead || s.closed { // Close has told its holders
		return
	}
	cl.dead = true
	delete(s.troubles, cl)
	s.unschedule(&cl.alarm)
	before := s.lostHolds.Load()
	switch h := cl.object.alone; {
	case h != nil && h.claim == cl:
		h.endLost(s, w)
	case cl.kind.Many():
		cl.more.holder.endLost(s, w)
	default:
		cl.loseReaders(s, w)
	}
	if s.lostHolds.Load() > before {
		s.reportLoss(s.lastLosses[len(s.lastLosses)-1])
	}
	if s.stored(cl.Lease()) > cl.Lease() || cl.Outlives() {
		cl.takeBack(s) // otherwise the store would keep the lock for too long
	}
	cl.mark(s, markFree|markLost)
}

// endLost ends one hold on a claim that is lost.
func (h *hold) endLost(s *state, w why) {
	l := h.newLoss(s, w)
	h.state = lost
	h.drop(s)
	h.tell(s, h.recordLoss(s, l))
	v := h.variable()
	if v == nil || h.kind.Shared() {
		s.remember(h)
	}
	if v != nil && h.kind.Shared() && v.hold == h {
		v.hold = nil // other readers of the Locker go on
	}
	if inner := h.endInner(s); inner != nil {
		inner.takeBack(s)
	}
}

// forsake ends a hold because the client is closed.
func (h *hold) forsake(s *state) {
	h.state = forsaken
	h.tell(s, ErrClosed)
	if h.told {
		h.told = false
		e := h.forsakenEvent(s)
		s.trace(func(c *Client) { c.traces.releaseDone(context.Background(), e) })
	}
	s.unschedule(&h.claim.alarm)
}

// drop removes a hold from the client's tables.
func (h *hold) drop(s *state) {
	o := h.claim.object
	switch {
	case h.kind.Shared():
		o.forgetReader(h)
	case h.kind.Many():
		o.forgetPermits(s, h)
	case o.alone == h:
		o.alone = nil
		s.unschedule(&h.claim.alarm)
	}
	o.mark(s, markChanged)
}

// vacate lets the next plain call lock the hold's Locker. It is called when the hold is released.
func (h *hold) vacate(s *state) {
	v := h.variable()
	if v == nil || v.hold != h {
		return
	}
	v.hold = nil
	h.claim.mark(s, markUnlocked)
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

// A lostKey is a key in the table of lost holds. It consists of a lock, a kind and a party.
type lostKey struct {
	lockKey
	kind  protocol.Kind
	party party
}

func (h *hold) lostKey() lostKey { return lostKey{h.claim.object.key(), h.kind, h.party} }

// remember remembers a lost hold, so that later unlocks of it can return the loss.
func (s *state) remember(h *hold) {
	key := h.lostKey()
	s.lost[key] = append(s.lost[key], h)
	s.losses = append(s.losses, h)
	if len(s.losses) > maxLosses {
		s.forgot = true
		s.forget(s.losses[0])
	}
	s.schedule(&h.claim.alarm, s.now()+lossMemory*s.lease)
}

// forgetAll forgets all remembered holds on a claim.
func (s *state) forgetAll(cl *claim) {
	s.forgot = true
	for i := len(s.losses) - 1; i >= 0; i-- {
		if h := s.losses[i]; h.claim == cl {
			s.forget(h)
		}
	}
}

// forget forgets a lost hold, so that a later unlock doesn't find it. If the hold hasn't been
// unlocked yet, the caller must set s.forgot.
func (s *state) forget(h *hold) {
	if i := slices.Index(s.losses, h); i >= 0 {
		s.losses = slices.Delete(s.losses, i, i+1)
	}
	if !slices.ContainsFunc(s.losses, func(x *hold) bool { return x.claim == h.claim }) {
		s.unschedule(&h.claim.alarm)
	}
	if v := h.variable(); v != nil { // the Locker goes on remembering this loss
		v.owed += int(h.count)
		h.count = 0
	}
	key := h.lostKey()
	left := slices.DeleteFunc(s.lost[key], func(x *hold) bool { return x == h })
	if len(left) == 0 {
		delete(s.lost, key)
	} else {
		s.lost[key] = left
	}
}

// lastLoss returns the latest lost hold with the given key that hasn't been unlocked yet, or nil.
func (s *state) lastLoss(key lostKey) *hold {
	holds := s.lost[key]
	if len(holds) == 0 {
		return nil
	}
	return holds[len(holds)-1]
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

func (cl *claim) releaseRequest(lease time.Duration, ask bool) backend.ReleaseRequest {
	n, _ := cl.permits()
	return backend.ReleaseRequest{
		Kind: backend.Kind(cl.kind), Name: cl.object.name, Owner: cl.owner, Lease: lease,
		AskWaiting: ask, Permits: n,
	}
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

// permits returns the number of permits that a claim asks for, and the semaphore's limit.
func (cl *claim) permits() (n, limit int) {
	if !cl.kind.Many() {
		return 0, 0
	}
	return cl.more.many, cl.more.limit
}

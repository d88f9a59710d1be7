package protocol

import (
	"math"
	"sync/atomic"
	"time"
)

// A Promise is all that is known of until when a store keeps a claim. A lease that a store grants
// replaces the one before, also if it is shorter: only of a read it doesn't. And requests may be
// carried out late, in another order than they were sent in, or never. So a promise lasts no
// longer than what any request that may yet be carried out leaves.
//
// All methods but Until need the mutex of the client.
type Promise struct {
	deadline atomic.Int64  // the instant until which it is relied on
	horizon  Instant       // until when the store keeps it if nothing more is sent
	lease    time.Duration // that the next renewal or partial release asks for
	doubt    time.Duration // the shortest lease of any request without an answer; 0: none
	renewal  time.Duration // the shortest lease that renewals under way ask for; 0: none
	most     time.Duration // the longest lease that steps under way ask for; 0: none
	steps    uint32        // how many re-entries and partial releases are under way
	renewals uint16        // how many renewals are under way or have no answer, up to manyRenewals
	renewed  bool          // it is renewed until it is released
	counts   bool          // an acquiring request has no answer: the store may count more than we do
	rare     *rare         // what most promises don't need; nil: nothing of it
}

type rare struct {
	cut    Instant       // answers to renewals that were sent before add nothing
	kept   Instant       // until when it stays taken, whatever its holder does; 0: no longer than held
	sent   Instant       // when the last request was sent that was granted
	grant  time.Duration // for how long the store gave it to the first in line; 0 once it is renewed
	wanted Instant       // until when the call wanted it then
}

// manyRenewals is a number of renewals at which they aren't counted any more.
const manyRenewals = math.MaxUint16

// Want notes for how long each request is to ask, and whether the claim is renewed.
func (p *Promise) Want(lease time.Duration, renewed bool) { p.lease, p.renewed = lease, renewed }

// Renew notes that the claim is renewed from now on.
func (p *Promise) Renew() { p.renewed = true }

// EndRenewal leaves a read with a fixed lease, of which nobody tells the store.
func (p *Promise) EndRenewal(now Instant) {
	p.renewed = false
	p.lease = p.Remaining(now)
}

// Until returns the instant until which the claim is relied on.
func (p *Promise) Until() Instant { return Instant(p.deadline.Load()) }

// Lease returns what the next renewal of a renewed claim asks for.
func (p *Promise) Lease() time.Duration { return p.lease }

// Renewed says whether the claim is renewed until it is released.
func (p *Promise) Renewed() bool { return p.renewed }

// Horizon returns until when the store keeps the claim if nothing more is sent, and what was sent
// is carried out at once.
func (p *Promise) Horizon() Instant { return p.horizon }

// Sent notes that a request goes out with which the store keeps the claim for so long.
func (p *Promise) Sent(now Instant, stored time.Duration) { p.horizon = max(p.horizon, now+stored) }

// Granted notes that the store granted lease to a request that was sent at that instant.
func (p *Promise) Granted(sent Instant, lease time.Duration) {
	if p.doubt > 0 {
		lease = min(lease, p.doubt) // a late request may yet shorten it to that
	}
	if until := sent + Promised(lease); until > p.Until() {
		p.deadline.Store(int64(until))
	}
	if p.rare != nil {
		p.rare.grant, p.rare.sent = 0, sent
	}
}

// Unanswered notes that a request for lease has no answer. Time doesn't settle that.
func (p *Promise) Unanswered(lease time.Duration) { p.doubt = shorter(p.doubt, lease) }

// shorter returns the shorter of two leases, of which the first is 0 if there is none.
func shorter(lease, other time.Duration) time.Duration {
	if lease == 0 {
		return other
	}
	return min(lease, other)
}

// Stray notes that an acquiring request has no answer, or that nobody has what it was granted.
func (p *Promise) Stray() { p.counts = true }

// StrayUntil is Stray where the store may keep the claim until that instant because of it.
func (p *Promise) StrayUntil(until Instant) {
	p.counts = true
	p.horizon = max(p.horizon, until)
}

// Strays says whether the store may have the claim, or count more of it, than is known.
func (p *Promise) Strays() bool { return p.counts }

// Gone notes that nobody relies on the claim from now on.
func (p *Promise) Gone(now Instant) { p.deadline.Store(min(p.deadline.Load(), int64(now))) }

// Renewal returns the lease that a renewal is to have confirmed, and what it asks for: no less than
// the steps under way ask for, or it could take that back.
func (p *Promise) Renewal(now Instant) (lease, asked time.Duration) {
	lease = p.lease
	if !p.renewed {
		lease = p.Remaining(now)
	}
	lease = max(lease, p.Left(now))
	return lease, max(lease, p.most)
}

// RenewalSent notes that a renewal goes out that asks for so much.
func (p *Promise) RenewalSent(now Instant, asked, stored time.Duration) {
	p.Sent(now, stored)
	if p.renewals < manyRenewals {
		p.renewals++
	}
	p.renewal = shorter(p.renewal, asked)
}

// RenewalOver notes that a renewal is over: it won't be carried out any more.
func (p *Promise) RenewalOver() {
	if p.renewals < manyRenewals {
		p.renewals--
	}
	if p.renewals == 0 {
		p.renewal = 0
	}
}

// RenewalGranted notes that the store granted lease to a renewal that was sent at that instant.
func (p *Promise) RenewalGranted(sent Instant, lease time.Duration) {
	if p.rare == nil || sent > p.rare.cut {
		p.Granted(sent, lease)
	}
}

// Lengthens notes that renewals are to ask for so long from now on. If requests under way have
// asked for less, one that is carried out after that takes it back.
func (p *Promise) Lengthens(d time.Duration) {
	p.outlasts(d)
	if p.steps > 0 && d > p.most {
		p.Unanswered(p.most)
	}
}

// outlasts notes that a request asks for so long. Late renewals may take that back.
func (p *Promise) outlasts(d time.Duration) {
	if p.renewals > 0 && d > p.renewal {
		p.Unanswered(p.renewal)
	}
}

// StepSent notes that a re-entry or a partial release goes out that asks for so much. There is one
// at a time, but for reads.
func (p *Promise) StepSent(now Instant, asked, stored time.Duration) {
	p.Sent(now, stored)
	p.outlasts(asked)
	p.steps++
	p.most = max(p.most, asked)
}

// StepOver notes that a re-entry or a partial release was answered, or isn't waited for any more.
func (p *Promise) StepOver() {
	if p.steps--; p.steps == 0 {
		p.most = 0
	}
}

// StepGranted notes that the store granted what such a step asked for. Renewals ask for lease from
// now on.
func (p *Promise) StepGranted(sent Instant, lease, asked time.Duration) {
	p.lease = lease
	p.Granted(sent, asked)
}

// Reentry returns the lease that a re-entry is to leave, and what it asks for: the lease of the
// claim, or, if that isn't renewed, what it wants, but no less than what is left.
func (p *Promise) Reentry(now Instant, wanted time.Duration) (lease, asked time.Duration) {
	lease = p.lease
	if !p.renewed {
		lease = max(p.Remaining(now), wanted)
	}
	return lease, max(lease, p.Left(now))
}

// PartialRelease returns what a partial release asks for, and the lease that is left. If the
// renewal ends with it, that is a fixed one, and renewals that were sent before add nothing to it.
func (p *Promise) PartialRelease(now Instant, endsRenewal bool) (lease, asked time.Duration) {
	lease, asked = p.lease, max(p.Remaining(now), p.Left(now))
	if endsRenewal {
		p.renewed = false
		p.rarely().cut = now
		lease = asked
	}
	return lease, max(asked, lease)
}

// Given notes that the store gave the claim to the first in line, at that instant and for so long.
// The call wanted it until another, and the first renewal asks for that.
func (p *Promise) Given(since Instant, lease time.Duration, wanted Instant) {
	p.Sent(since, lease)
	p.deadline.Store(int64(min(since+Promised(lease), wanted)))
	p.rarely().grant, p.rare.wanted = lease, wanted
}

// Keep has the claim stay taken until that instant, or for longer if that was wanted before. The
// store has last granted it at a request that was sent at the other.
func (p *Promise) Keep(until, sent Instant) {
	r := p.rarely()
	r.kept, r.sent = max(r.kept, until), max(r.sent, sent)
}

// Forgo takes that back. What the store was asked to keep for longer is relied on for no longer
// than a lease: the next renewal asks for that.
func (p *Promise) Forgo(now Instant) {
	if p.Stays() {
		p.rare.kept = 0
		p.Gone(now + Promised(p.lease))
	}
}

// Stays says whether the claim stays taken for a time that doesn't depend on its holder.
func (p *Promise) Stays() bool { return p.rare != nil && p.rare.kept > 0 }

// Left returns how much is left of that time.
func (p *Promise) Left(now Instant) time.Duration {
	if p.rare == nil {
		return 0
	}
	return max(p.rare.kept-now, 0)
}

// Becomes has a claim be what another request has asked for under the same owner string, and has
// been granted until that instant. What was asked for before is left to rest, which is to be
// released.
func (p *Promise) Becomes(other, rest *Promise, until Instant) {
	rest.lease, rest.horizon, rest.counts = p.lease, p.horizon, p.counts
	p.horizon, p.counts = other.horizon, other.counts
	p.deadline.Store(int64(until)) // what it was before may have been promised for longer
}

// Passes says whether the claim may go from one holder to another, or be joined: it is renewed, and
// no request without an answer can shorten it.
func (p *Promise) Passes(now Instant) bool {
	return p.renewed && p.doubt == 0 && now < p.Until() && !p.Stays()
}

// GoesOn says whether the claim is to last longer than it is promised now.
func (p *Promise) GoesOn() bool { return p.renewed || p.goal() > p.Until() }

// goal returns until when the claim is to last, if it isn't renewed for longer.
func (p *Promise) goal() Instant {
	if p.granted() > 0 {
		return p.rare.wanted
	}
	return p.Until()
}

// granted returns for how long the store gave the claim to the first in line, and 0 if it was
// renewed since.
func (p *Promise) granted() time.Duration {
	if p.rare == nil {
		return 0
	}
	return p.rare.grant
}

// Outlives says whether the store may keep the claim, which isn't to last any longer, for much
// longer than it was promised: a re-entry without an answer was to prolong it, or the first in
// line was given it for longer.
func (p *Promise) Outlives() bool { return !p.renewed && p.horizon > p.Until()+p.lease/10 }

// EndsBefore says whether the claim ends by itself, and another doesn't, or later.
func (p *Promise) EndsBefore(other *Promise) bool {
	return !p.renewed && (other.renewed || p.Until() < other.Until())
}

// Remaining returns the lease, in whole milliseconds, that promises no less than is left.
func (p *Promise) Remaining(now Instant) time.Duration {
	left := p.goal() - now
	left += left / (driftShare - 1)
	return (left + time.Millisecond - 1).Truncate(time.Millisecond)
}

// Effective returns the lease that the claim can count on: its own, or a shorter one of a request
// that may yet be carried out.
func (p *Promise) Effective() time.Duration {
	lease := p.lease
	for _, other := range [...]time.Duration{p.doubt, p.granted()} {
		if other > 0 {
			lease = min(lease, other)
		}
	}
	return lease
}

// Confirmed returns when the request was sent with which the store has last granted the claim what
// it has. The request that acquired it was sent when it began.
func (p *Promise) Confirmed(began Instant) Instant {
	if p.Stays() {
		return max(p.rare.sent, began)
	}
	return max(p.Until()-Promised(p.Effective()), began)
}

// Next returns the time of the next renewal where it should be about such a part of a lease after
// that instant, and of a lease no longer than most: a little earlier, on a grid that all claims
// with this lease share, so that they are renewed in batches. It is never after the deadline.
func (p *Promise) Next(after Instant, part, most time.Duration) Instant {
	lease := min(p.Effective(), most)
	at := after + lease/part
	return min(at-at%max(lease/16, 1), p.Until())
}

// answerPatience is for how long after a lease a take-back waits for an answer of a store.
const answerPatience = time.Minute

// TakenBack says whether a release that was sent at that instant, and answered or not, was the last
// that is needed: no request that is under way still can bring the claim about, or the store hasn't
// answered for so long that the rest is left to time.
func (p *Promise) TakenBack(sent Instant, answered bool) bool {
	return answered && (sent >= p.horizon || !p.counts) ||
		sent >= p.horizon+max(p.lease, answerPatience)
}

func (p *Promise) rarely() *rare {
	if p.rare == nil {
		p.rare = new(rare)
	}
	return p.rare
}

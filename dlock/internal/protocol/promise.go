package protocol

import (
	"math"
	"sync/atomic"
	"time"
)

// A Promise is a client's knowledge of how long a store keeps a claim. A lease that a store grants
// replaces the lease before it, even if the new one is shorter. Reads are the exception: their
// leases never get shorter. Requests may be carried out late, out of order, or never. So a promise
// never lasts longer than the lease that a late request could leave.
//
// All methods but Until need the mutex of the client.
type Promise struct {
	deadline atomic.Int64  // the claim is relied on until then
	horizon  Instant       // the store keeps the claim until then if nothing more is sent
	lease    time.Duration // the lease that the next renewal or partial release asks for
	doubt    time.Duration // the shortest lease of any request without an answer; 0: none
	renewal  time.Duration // the shortest lease that renewals under way ask for; 0: none
	most     time.Duration // the longest lease that steps under way ask for; 0: none
	steps    uint32        // the number of re-entries and partial releases under way
	renewals uint16        // renewals under way or without an answer; counted up to manyRenewals
	renewed  bool          // the claim is renewed until it is released
	// an acquiring request has no answer: the store may count more than the client
	counts bool
	rare   *rare // fields that most promises don't need; nil: all are zero
}

type rare struct {
	cut  Instant // renewals that were sent before it don't prolong the promise
	kept Instant // the lock stays taken until then, even without a holder; 0: no longer than held
	sent Instant // when the last granted request was sent
	// how long the store gave the claim to the first in line for; 0 once it is renewed
	grant  time.Duration
	wanted Instant // the call in line wanted the claim until then
}

// manyRenewals is the number at which the counting of renewals stops.
const manyRenewals = math.MaxUint16

// Want sets the lease that each request asks for, and whether the claim is renewed.
func (p *Promise) Want(lease time.Duration, renewed bool) { p.lease, p.renewed = lease, renewed }

// Renew records that the claim is renewed from now on.
func (p *Promise) Renew() { p.renewed = true }

// EndRenewal makes the lease of a read a fixed one. The store isn't told.
func (p *Promise) EndRenewal(now Instant) {
	p.renewed = false
	p.lease = p.Remaining(now)
}

// Until returns the time until which the claim is relied on.
func (p *Promise) Until() Instant { return Instant(p.deadline.Load()) }

// Lease returns the lease that the next renewal of a renewed claim asks for.
func (p *Promise) Lease() time.Duration { return p.lease }

// Renewed reports whether the claim is renewed until it is released.
func (p *Promise) Renewed() bool { return p.renewed }

// Horizon returns the time until which the store keeps the claim if nothing more is sent, and every
// request so far is carried out at once.
func (p *Promise) Horizon() Instant { return p.horizon }

// Sent records that a request is sent. If it is carried out, the store keeps the claim for the time
// stored.
func (p *Promise) Sent(now Instant, stored time.Duration) { p.horizon = max(p.horizon, now+stored) }

// Granted records that the store granted lease to a request sent at the instant sent.
func (p *Promise) Granted(sent Instant, lease time.Duration) {
	if p.doubt > 0 {
		lease = min(lease, p.doubt) // a late request may yet shorten the lease to doubt
	}
	if until := sent + Promised(lease); until > p.Until() {
		p.deadline.Store(int64(until))
	}
	if p.rare != nil {
		p.rare.grant, p.rare.sent = 0, sent
	}
}

// Unanswered records that a request for lease has no answer. The doubt about it doesn't end with
// time.
func (p *Promise) Unanswered(lease time.Duration) { p.doubt = shorter(p.doubt, lease) }

// shorter returns the shorter of two leases. If lease is 0, there is none, and shorter returns
// other.
func shorter(lease, other time.Duration) time.Duration {
	if lease == 0 {
		return other
	}
	return min(lease, other)
}

// Stray records that an acquiring request is unanswered, or that no party uses its grant.
func (p *Promise) Stray() { p.counts = true }

// StrayUntil records a stray. Because of it, the store may keep the claim until the instant until.
func (p *Promise) StrayUntil(until Instant) {
	p.counts = true
	p.horizon = max(p.horizon, until)
}

// Strays reports whether the store may have the claim, or a higher count of it, without the
// client's knowledge.
func (p *Promise) Strays() bool { return p.counts }

// Gone records that from now on the claim can't be relied on.
func (p *Promise) Gone(now Instant) { p.deadline.Store(min(p.deadline.Load(), int64(now))) }

// Renewal returns the lease that a renewal is to confirm, and the lease that it asks for. The
// renewal asks for no less than the steps under way, so that it can't shorten the leases that they
// are granted.
func (p *Promise) Renewal(now Instant) (lease, asked time.Duration) {
	lease = p.lease
	if !p.renewed {
		lease = p.Remaining(now)
	}
	lease = max(lease, p.Left(now))
	return lease, max(lease, p.most)
}

// RenewalSent records that a renewal is sent. asked is the lease that it asks for.
func (p *Promise) RenewalSent(now Instant, asked, stored time.Duration) {
	p.Sent(now, stored)
	if p.renewals < manyRenewals {
		p.renewals++
	}
	p.renewal = shorter(p.renewal, asked)
}

// RenewalOver records that a renewal is no longer under way: it was answered, or was never carried
// out.
func (p *Promise) RenewalOver() {
	if p.renewals < manyRenewals {
		p.renewals--
	}
	if p.renewals == 0 {
		p.renewal = 0
	}
}

// RenewalGranted records that the store granted lease to a renewal sent at the instant sent.
func (p *Promise) RenewalGranted(sent Instant, lease time.Duration) {
	if p.rare == nil || sent > p.rare.cut {
		p.Granted(sent, lease)
	}
}

// Lengthens records that renewals ask for the lease d from now on. A request under way may have
// asked for less. If it is carried out later, it shortens the lease again.
func (p *Promise) Lengthens(d time.Duration) {
	p.outlasts(d)
	if p.steps > 0 && d > p.most {
		p.Unanswered(p.most)
	}
}

// outlasts records that a request asks for the lease d. Late renewals may shorten it again.
func (p *Promise) outlasts(d time.Duration) {
	if p.renewals > 0 && d > p.renewal {
		p.Unanswered(p.renewal)
	}
}

// StepSent records that a re-entry or a partial release is sent. asked is the lease that it asks
// for. Only one such step is under way at a time, except for reads.
func (p *Promise) StepSent(now Instant, asked, stored time.Duration) {
	p.Sent(now, stored)
	p.outlasts(asked)
	p.steps++
	p.most = max(p.most, asked)
}

// StepOver records that a re-entry or a partial release was answered, or that the client no longer
// waits for its answer.
func (p *Promise) StepOver() {
	if p.steps--; p.steps == 0 {
		p.most = 0
	}
}

// StepGranted records that the store granted the lease that a re-entry or a partial release asked
// for. Renewals ask for lease from now on.
func (p *Promise) StepGranted(sent Instant, lease, asked time.Duration) {
	p.lease = lease
	p.Granted(sent, asked)
}

// Reentry returns the lease that the claim has after a re-entry, and the lease that the re-entry
// asks for. The lease of a renewed claim stays as it is. A claim that isn't renewed gets the lease
// that the call wants, but no less than the remaining time.
func (p *Promise) Reentry(now Instant, wanted time.Duration) (lease, asked time.Duration) {
	lease = p.lease
	if !p.renewed {
		lease = max(p.Remaining(now), wanted)
	}
	return lease, max(lease, p.Left(now))
}

// PartialRelease returns the lease that the claim has after a partial release, and the lease that
// the release asks for. If the release ends the renewal, the lease is a fixed one, and renewals
// that were sent earlier add nothing to it.
func (p *Promise) PartialRelease(now Instant, endsRenewal bool) (lease, asked time.Duration) {
	lease, asked = p.lease, max(p.Remaining(now), p.Left(now))
	if endsRenewal {
		p.renewed = false
		p.rarely().cut = now
		lease = asked
	}
	return lease, max(asked, lease)
}

// Given records that the store gave the claim to the first in line at since. The call that stood in
// line wants the claim until wanted. So the first renewal asks for that time.
func (p *Promise) Given(since Instant, lease time.Duration, wanted Instant) {
	p.Sent(since, lease)
	p.deadline.Store(int64(min(since+Promised(lease), wanted)))
	p.rarely().grant, p.rare.wanted = lease, wanted
}

// Keep makes the claim stay taken until the instant until, or for longer if an earlier Keep says
// so. sent is when the request for the store's last grant was sent.
func (p *Promise) Keep(until, sent Instant) {
	r := p.rarely()
	r.kept, r.sent = max(r.kept, until), max(r.sent, sent)
}

// Forgo undoes Keep. The store may keep the claim for longer than a lease. The promise is limited
// to one lease, the one that the next renewal asks for.
func (p *Promise) Forgo(now Instant) {
	if p.Stays() {
		p.rare.kept = 0
		p.Gone(now + Promised(p.lease))
	}
}

// Stays reports whether the claim stays taken for a time that doesn't depend on its holder.
func (p *Promise) Stays() bool { return p.rare != nil && p.rare.kept > 0 }

// Left returns how long the claim still stays taken because of Keep.
func (p *Promise) Left(now Instant) time.Duration {
	if p.rare == nil {
		return 0
	}
	return max(p.rare.kept-now, 0)
}

// Becomes gives the claim the state of other, for a downgrade. other is the read under the same
// owner string, which was granted until the instant until. rest receives the former state of the
// claim, the write, for its release.
func (p *Promise) Becomes(other, rest *Promise, until Instant) {
	rest.lease, rest.horizon, rest.counts = p.lease, p.horizon, p.counts
	p.horizon, p.counts = other.horizon, other.counts
	p.deadline.Store(int64(until)) // the promise may have been longer
}

// Passes reports whether the claim may be handed over to another holder, or joined. That requires
// that the claim is valid and renewed, that no unanswered request can shorten it, and that it isn't
// to stay taken after its release.
func (p *Promise) Passes(now Instant) bool {
	return p.renewed && p.doubt == 0 && now < p.Until() && !p.Stays()
}

// GoesOn reports whether the claim should last longer than its current promise.
func (p *Promise) GoesOn() bool { return p.renewed || p.goal() > p.Until() }

// goal returns the time until which a claim that isn't renewed should last.
func (p *Promise) goal() Instant {
	if p.granted() > 0 {
		return p.rare.wanted
	}
	return p.Until()
}

// granted returns the lease with which the store gave the claim to the first in line. It is 0 after
// a renewal, and for a claim that wasn't given.
func (p *Promise) granted() time.Duration {
	if p.rare == nil {
		return 0
	}
	return p.rare.grant
}

// Outlives reports whether the store may keep the claim for much longer than promised, although no
// call wants that. The cause can be an unanswered re-entry, or a store that gave the claim to the
// first in line for longer than the call wanted.
func (p *Promise) Outlives() bool { return !p.renewed && p.horizon > p.Until()+p.lease/10 }

// EndsBefore reports whether the claim ends without a release, and the other claim ends later or
// not at all.
func (p *Promise) EndsBefore(other *Promise) bool {
	return !p.renewed && (other.renewed || p.Until() < other.Until())
}

// Remaining returns a lease in whole milliseconds that is long enough to promise the remaining
// time.
func (p *Promise) Remaining(now Instant) time.Duration {
	left := p.goal() - now
	left += left / (driftShare - 1)
	return (left + time.Millisecond - 1).Truncate(time.Millisecond)
}

// Effective returns the lease that the claim can count on: the shortest of its own lease, that of a
// request that may still be carried out, and that of a grant. A lease of 0 is ignored.
func (p *Promise) Effective() time.Duration {
	lease := p.lease
	for _, other := range [...]time.Duration{p.doubt, p.granted()} {
		if other > 0 {
			lease = min(lease, other)
		}
	}
	return lease
}

// Confirmed returns when the request for the last grant was sent. It is never before began, when
// the acquiring request was sent.
func (p *Promise) Confirmed(began Instant) Instant {
	if p.Stays() {
		return max(p.rare.sent, began)
	}
	return max(p.Until()-Promised(p.Effective()), began)
}

// Next returns the time of the next renewal, which is never after the deadline. It is about
// lease/part after the instant after, so with part 3 a third of a lease. A lease longer than most
// counts as most. Renewals of all claims with this lease are aligned to one grid of times, a little
// early, so that they can be sent in batches.
func (p *Promise) Next(after Instant, part, most time.Duration) Instant {
	lease := min(p.Effective(), most)
	at := after + lease/part
	return min(at-at%max(lease/16, 1), p.Until())
}

// answerPatience is how long after the lease's end a take-back still waits for the store's answer.
const answerPatience = time.Minute

// TakenBack reports whether a take-back is complete after a release sent at the instant sent. It is
// if the release was answered, and no request under way can bring the claim back. It also is if the
// store hasn't answered for a long time after the end of the lease, which frees the lock.
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

package protocol

import (
	"math"
	"sync/atomic"
	"time"
)

// A Promise tracks how long a store keeps a claim, as far as its client knows. A new lease replaces
// the previous one, even if the new one is shorter. Reads are the exception: their leases never get
// shorter. Requests might be carried out late, out of order, or never. So a promise never lasts
// longer than the shortest lease that a late request could still set.
//
// All methods except Until require the client's mutex.
type Promise struct {
	deadline atomic.Int64  // the claim can be relied on until this time
	horizon  Instant       // when the store drops the claim if nothing more is sent
	lease    time.Duration // the lease that the next renewal or partial release asks for
	doubt    time.Duration // the shortest lease among unanswered requests; 0 if there are none
	renewal  time.Duration // the shortest lease that renewals under way ask for; 0 if none
	most     time.Duration // the longest lease that steps under way ask for; 0 if none
	steps    uint32        // the number of re-entries and partial releases under way
	renewals uint16        // the number of renewals under way or unanswered; at most manyRenewals
	renewed  bool          // whether the claim is renewed until it is released
	// counts is set if the store's count might be higher than the client's, because an acquiring
	// request wasn't answered.
	counts bool
	rare   *rare // fields that few promises need; nil if all are zero
}

type rare struct {
	cut  Instant // renewals sent before this time don't extend the promise
	kept Instant // the lock stays taken until then, even after its release; 0 if it isn't kept
	sent Instant // when the last granted request was sent
	// grant is the lease that the claim had when the store gave it to the first in line. It is 0
	// after the first renewal.
	grant  time.Duration
	wanted Instant // the end of the lease that the call that was first in line asked for
}

// manyRenewals is the count at which a Promise stops counting renewals.
const manyRenewals = math.MaxUint16

// Want sets the lease that each request asks for, and whether the claim is renewed.
func (p *Promise) Want(lease time.Duration, renewed bool) { p.lease, p.renewed = lease, renewed }

// Renew records that the claim is renewed from now on.
func (p *Promise) Renew() { p.renewed = true }

// EndRenewal ends the renewal of a read, which then has a fixed lease. Nothing is sent to the
// store.
func (p *Promise) EndRenewal(now Instant) {
	p.renewed = false
	p.lease = p.Remaining(now)
}

// Until returns the time after which the claim can no longer be relied on.
func (p *Promise) Until() Instant { return Instant(p.deadline.Load()) }

// Lease returns the lease that the next renewal asks for, provided that the claim is renewed.
func (p *Promise) Lease() time.Duration { return p.lease }

// Renewed reports whether the claim is renewed until it is released.
func (p *Promise) Renewed() bool { return p.renewed }

// Horizon returns the time at which the store drops the claim if nothing more is sent and all
// requests so far are carried out at once.
func (p *Promise) Horizon() Instant { return p.horizon }

// Sent records that a request is sent at the given time. The parameter stored is how long the store
// keeps the claim if it carries out the request.
func (p *Promise) Sent(now Instant, stored time.Duration) { p.horizon = max(p.horizon, now+stored) }

// Granted records that the store granted a request with the given lease. The parameter sent is the
// time at which the request was sent.
func (p *Promise) Granted(sent Instant, lease time.Duration) {
	if p.doubt > 0 {
		lease = min(lease, p.doubt) // a late request might still shorten the lease to p.doubt
	}
	if until := sent + Promised(lease); until > p.Until() {
		p.deadline.Store(int64(until))
	}
	if p.rare != nil {
		p.rare.grant, p.rare.sent = 0, sent
	}
}

// Unanswered records that a request for the given lease was not answered. The store might carry it
// out at any later time, so the promise takes that lease into account from then on.
func (p *Promise) Unanswered(lease time.Duration) { p.doubt = shorter(p.doubt, lease) }

// shorter returns the shorter of two leases. If the first is 0, which stands for no lease, shorter
// returns the other.
func shorter(lease, other time.Duration) time.Duration {
	if lease == 0 {
		return other
	}
	return min(lease, other)
}

// Stray records that the store might have made a grant that no party uses, for example because an
// acquiring request was not answered.
func (p *Promise) Stray() { p.counts = true }

// StrayUntil is like Stray, and also records that the store might keep the claim until the given
// instant.
func (p *Promise) StrayUntil(until Instant) {
	p.counts = true
	p.horizon = max(p.horizon, until)
}

// Strays reports whether the store might keep the claim, or a higher count for it, without the
// client's knowledge.
func (p *Promise) Strays() bool { return p.counts }

// Gone records that from now on the claim can't be relied on.
func (p *Promise) Gone(now Instant) { p.deadline.Store(min(p.deadline.Load(), int64(now))) }

// Renewal returns the lease that the claim itself needs, and the lease that a renewal must ask for.
// The second is at least as long as the leases that re-entries and partial releases under way ask
// for, so that the renewal can't shorten the leases granted to them.
func (p *Promise) Renewal(now Instant) (lease, asked time.Duration) {
	lease = p.lease
	if !p.renewed {
		lease = p.Remaining(now)
	}
	lease = max(lease, p.Left(now))
	return lease, max(lease, p.most)
}

// RenewalSent is like Sent, for a renewal. asked is the lease that the renewal asks for.
func (p *Promise) RenewalSent(now Instant, asked, stored time.Duration) {
	p.Sent(now, stored)
	if p.renewals < manyRenewals {
		p.renewals++
	}
	p.renewal = shorter(p.renewal, asked)
}

// RenewalOver records that a renewal is no longer under way, because it was answered or was never
// carried out.
func (p *Promise) RenewalOver() {
	if p.renewals < manyRenewals {
		p.renewals--
	}
	if p.renewals == 0 {
		p.renewal = 0
	}
}

// RenewalGranted records that the store granted a renewal with the given lease. The parameter sent
// is the time at which the renewal was sent.
func (p *Promise) RenewalGranted(sent Instant, lease time.Duration) {
	if p.rare == nil || sent > p.rare.cut {
		p.Granted(sent, lease)
	}
}

// Lengthens records that renewals ask for the lease d from now on. A request under way that asks
// for less might be carried out late, and shorten the lease again. So Lengthens treats it as
// unanswered.
func (p *Promise) Lengthens(d time.Duration) {
	p.outlasts(d)
	if p.steps > 0 && d > p.most {
		p.Unanswered(p.most)
	}
}

// outlasts records that a request asks for the lease d. A renewal under way that asks for less
// might be carried out late, and shorten the lease again. So outlasts treats it as unanswered.
func (p *Promise) outlasts(d time.Duration) {
	if p.renewals > 0 && d > p.renewal {
		p.Unanswered(p.renewal)
	}
}

// StepSent is like Sent, for a re-entry or a partial release. asked is the lease that the step asks
// for. Except for reads, only one such step is under way at a time.
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

// StepGranted records that the store granted a re-entry or a partial release. The parameter sent is
// when the request was sent, and asked is the lease that it asked for. The parameter lease becomes
// the claim's lease, which renewals ask for.
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
// the release asks for. If the release ends the renewal of the claim, the lease is fixed from then
// on, and renewals that were sent earlier don't extend it.
func (p *Promise) PartialRelease(now Instant, endsRenewal bool) (lease, asked time.Duration) {
	lease, asked = p.lease, max(p.Remaining(now), p.Left(now))
	if endsRenewal {
		p.renewed = false
		p.rarely().cut = now
		lease = asked
	}
	return lease, max(asked, lease)
}

// Given records that the store gave the claim to the first in line, with the given lease. The
// parameter since is when that lease began. The parameter wanted is the end of the lease that the
// call that was first in line asked for. If the call asked for a fixed lease, the first renewal
// asks for the time left until wanted.
func (p *Promise) Given(since Instant, lease time.Duration, wanted Instant) {
	p.Sent(since, lease)
	p.deadline.Store(int64(min(since+Promised(lease), wanted)))
	p.rarely().grant, p.rare.wanted = lease, wanted
}

// Keep records that the lock stays taken at least until the given instant, even if the claim is
// released earlier. The parameter sent is the time at which the request for the last grant was
// sent.
func (p *Promise) Keep(until, sent Instant) {
	r := p.rarely()
	r.kept, r.sent = max(r.kept, until), max(r.sent, sent)
}

// Forgo undoes Keep. Because of Keep, the claim's lease in the store might be longer than the lease
// that the next renewal asks for. That renewal then shortens it, so Forgo limits the promise to the
// shorter lease.
func (p *Promise) Forgo(now Instant) {
	if p.Stays() {
		p.rare.kept = 0
		p.Gone(now + Promised(p.lease))
	}
}

// Stays reports whether the lock stays taken for a certain time even if its holder releases it.
func (p *Promise) Stays() bool { return p.rare != nil && p.rare.kept > 0 }

// Left returns how much longer the lock stays taken because of Keep.
func (p *Promise) Left(now Instant) time.Duration {
	if p.rare == nil {
		return 0
	}
	return max(p.rare.kept-now, 0)
}

// Becomes turns the promise of a write lock into the promise of a read lock, for a downgrade. The
// parameter other is the promise of the read lock, and until is the time at which it ends. The
// write lock must still be released. For that release, Becomes copies its promise to the parameter
// rest.
func (p *Promise) Becomes(other, rest *Promise, until Instant) {
	rest.lease, rest.horizon, rest.counts = p.lease, p.horizon, p.counts
	p.horizon, p.counts = other.horizon, other.counts
	p.deadline.Store(int64(until)) // the promise may have been longer
}

// Passes reports whether the claim can be handed over to another holder, or joined. It can if it is
// valid and renewed, no unanswered request can shorten it, and it doesn't stay taken after its
// release.
func (p *Promise) Passes(now Instant) bool {
	return p.renewed && p.doubt == 0 && now < p.Until() && !p.Stays()
}

// GoesOn reports whether the claim should last longer than its current promise.
func (p *Promise) GoesOn() bool { return p.renewed || p.goal() > p.Until() }

// goal returns the time at which a claim that isn't renewed should end.
func (p *Promise) goal() Instant {
	if p.granted() > 0 {
		return p.rare.wanted
	}
	return p.Until()
}

// granted returns the lease that the claim had when the store gave it to the first in line. It
// returns 0 if the claim has been renewed since, or was acquired in another way.
func (p *Promise) granted() time.Duration {
	if p.rare == nil {
		return 0
	}
	return p.rare.grant
}

// Outlives reports whether the store might keep the claim much longer than promised, although no
// call wants that. This can happen after an unanswered re-entry, or if the store gave the claim to
// the first in line for longer than the call wanted.
func (p *Promise) Outlives() bool { return !p.renewed && p.horizon > p.Until()+p.lease/10 }

// EndsBefore reports whether p's claim ends earlier than other's claim, if neither is released. A
// renewed claim doesn't end.
func (p *Promise) EndsBefore(other *Promise) bool {
	return !p.renewed && (other.renewed || p.Until() < other.Until())
}

// Remaining returns the shortest lease, in whole milliseconds, that covers the time from now until
// the claim should end.
func (p *Promise) Remaining(now Instant) time.Duration {
	left := p.goal() - now
	left += left / (driftShare - 1)
	return (left + time.Millisecond - 1).Truncate(time.Millisecond)
}

// Effective returns the lease that the client can count on. It is the shortest of the claim's own
// lease, the leases of unanswered requests, and the lease that the store gave to the first in line.
// Leases of 0 are ignored.
func (p *Promise) Effective() time.Duration {
	lease := p.lease
	for _, other := range [...]time.Duration{p.doubt, p.granted()} {
		if other > 0 {
			lease = min(lease, other)
		}
	}
	return lease
}

// Confirmed returns the time at which the request for the last grant was sent. The result is never
// earlier than the parameter began, which is the time at which the acquiring request was sent.
func (p *Promise) Confirmed(began Instant) Instant {
	if p.Stays() {
		return max(p.rare.sent, began)
	}
	return max(p.Until()-Promised(p.Effective()), began)
}

// Next returns the time of the next renewal. It is about lease/part after the given instant, where
// lease is the effective lease, but at most the parameter most. The time is rounded down to a
// multiple of lease/16, so that the renewals of claims with the same lease can be sent in batches.
// The result is never later than the deadline.
func (p *Promise) Next(after Instant, part, most time.Duration) Instant {
	lease := min(p.Effective(), most)
	at := after + lease/part
	return min(at-at%max(lease/16, 1), p.Until())
}

// answerPatience is how long the client waits for the store to confirm the release of an unwanted
// claim, counted from the end of the lease.
const answerPatience = time.Minute

// TakenBack reports whether an unwanted claim is gone from the store, after a release. The
// parameter sent is when the release was sent, and answered is true if it was answered. The claim
// is gone if the release was answered and no request under way can bring it back. It also counts as
// gone if the release was sent long after the end of the lease, because by then the lease has freed
// the lock even if the store never answered.
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

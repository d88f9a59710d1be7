package dlock

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Loss says how a lock was lost. It is an error that wraps [ErrLost]. [errors.AsType] finds it in
// the cause of a hold's context, in [Hold.Err], and in the error of the unlock. The text of a Loss
// doesn't contain the lock's name, but the *[Error] that wraps it does.
type Loss struct {
	Name   string
	Kind   backend.Kind
	Holder string // its id in the store (see [Hold.HolderID])
	Reason LossReason

	// At is when the loss was discovered. Held is how long the lock was held, until At or the end
	// of the lease, whichever was earlier. Unconfirmed is the time from the store's last
	// confirmation of the hold to the loss.
	At                time.Time
	Held, Unconfirmed time.Duration

	TakenBy string        // for LossTaken: the new holder's id
	Paused  time.Duration // for LossPaused: the pause's minimum length
	Err     error         // for LossExpired: the store's last error

	// Deprecated: Use Unconfirmed, which has the same value.
	Renewed time.Duration

	// Deprecated: Use TakenBy, which has the same value. The field By of a [HoldInfo] has another
	// meaning.
	By string
}

// The methods of Loss also read the deprecated fields, since a program can create a Loss with only
// those, for example in a test.

func (l *Loss) unconfirmed() time.Duration { return cmp.Or(l.Unconfirmed, l.Renewed) }

func (l *Loss) takenBy() string { return cmp.Or(l.TakenBy, l.By) }

// LossReason is the reason why a lock was lost.
type LossReason uint8

// Reasons for a [Loss].
const (
	// LossExpired means that the lease ran out, because the store didn't answer renewals, or
	// refused them.
	LossExpired LossReason = iota

	// LossGone means that the store no longer has the hold, and no other holder is known. Another
	// client or an operator force-unlocked the lock, or the store lost its data. A loss also has
	// this reason until the store has said who holds the lock now.
	LossGone

	// LossTaken means that the store no longer has the hold, and someone else holds the lock.
	LossTaken

	// LossForced means that this client force-unlocked the lock (see [Locker.ForceUnlock]).
	LossForced

	// LossPaused means that this process or its machine was paused while the lease ran out.
	LossPaused

	// LossLease means that a fixed lease ran out (see [FixedLease]). That is normal, unless the
	// work took too long.
	LossLease
)

// String returns the name of the reason: "expired", "gone", "taken", "forced", "paused" or "lease".
func (r LossReason) String() string {
	return [...]string{"expired", "gone", "taken", "forced", "paused", "lease"}[r]
}

// Error says how the lock was lost.
func (l *Loss) Error() string {
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	var b strings.Builder
	fmt.Fprintf(&b, "%v after %v: ", ErrLost, ms(l.Held))
	switch l.Reason {
	case LossExpired:
		fmt.Fprintf(&b, "the lease ran out: not renewed for %v", ms(l.unconfirmed()))
		if l.Err != nil {
			fmt.Fprintf(&b, ": %v", l.Err)
		}
	case LossGone:
		fmt.Fprintf(&b, "the store has it no more, and had it %v ago", ms(l.unconfirmed()))
	case LossTaken:
		fmt.Fprintf(&b, "another has it: %q", l.takenBy())
	case LossForced:
		b.WriteString("this client has forced it")
	case LossPaused:
		fmt.Fprintf(&b, "the lease ran out while this process stood still for %v", ms(l.Paused))
	case LossLease:
		b.WriteString("its fixed lease ran out")
	}
	return b.String()
}

// Unwrap returns [ErrLost].
func (l *Loss) Unwrap() error { return ErrLost }

// A why holds the details of why a claim is lost or in danger.
type why struct {
	reason LossReason
	had    instant // time of the last confirmation; if 0, the claim has it
	by     string
	paused time.Duration
	err    error
	said   instant // when a failed renewal was last logged
}

var gone = why{reason: LossGone}

// takenBy returns the reason for the loss of a lock that the store has given to another owner.
func takenBy(owner string) why { return why{reason: LossTaken, by: owner} }

// ranOut returns the reason why a claim has expired.
func (cl *claim) ranOut(s *state, now instant) why {
	w, known := s.troubles[cl]
	stood := cl.stoodStill(s, now)
	switch {
	case known && w.reason != LossExpired:
		return w
	case !cl.GoesOn():
		return why{reason: LossLease}
	case stood > 0:
		return why{reason: LossPaused, paused: stood}
	case !known:
		w.err = errUnanswered
	}
	return w
}

// shortestStall is the minimum duration of a stall. Shorter delays are ignored.
const shortestStall = 10 * time.Millisecond

// A stall is a period during which the process was paused, so that alarms didn't ring when they
// were due.
type stall struct{ from, to instant }

// stoodStill returns the length of the stall during which a claim expired, or 0 if there was no
// stall.
func (cl *claim) stoodStill(s *state, now instant) time.Duration {
	for _, st := range [...]stall{{s.alarms.next(now), now}, s.stalled} {
		if st.from <= cl.Until() && cl.Until() <= st.to && st.to-st.from >= cl.Effective()/8 {
			return st.to - st.from
		}
	}
	return 0
}

// newLoss describes the loss of a hold.
func (h *hold) newLoss(s *state, w why) *Loss {
	cl, now := h.claim, s.now()
	unconfirmed := now - cmp.Or(w.had, cl.Confirmed(cl.began))
	return &Loss{
		Name: cl.object.name, Kind: backend.Kind(h.kind), Holder: cl.owner, Reason: w.reason,
		Paused: w.paused, Err: w.err,
		At:          s.epoch.Add(now),
		Held:        max(min(now, max(cl.Until(), h.since()))-h.since(), 0),
		Unconfirmed: unconfirmed, Renewed: unconfirmed,
		TakenBy: w.by, By: w.by,
	}
}

// mostLosses is the number of losses that a client remembers for [Client.Losses].
const mostLosses = 64

// recordLoss records a loss. It returns the error that becomes the cancellation cause of the hold's
// contexts.
func (h *hold) recordLoss(s *state, l *Loss) error {
	h.watched().loss = l
	s.lostHolds.Add(1)
	if len(s.lastLosses) == mostLosses {
		s.lastLosses = slices.Delete(s.lastLosses, 0, 1)
	}
	s.lastLosses = append(s.lastLosses, l)
	if h.told {
		h.told = false
		s.trace(func(c *Client) { c.traces.lost(l) })
	}
	return &Error{Op: "hold", Name: l.Name, Err: l}
}

// reportLoss logs a loss as a warning, or at info level if a fixed lease has ended.
func (s *state) reportLoss(l *Loss) {
	level := slog.LevelWarn
	if l.Reason == LossLease {
		level = slog.LevelInfo
	}
	args := []any{"name", l.Name, "kind", l.Kind.String(), "holder", l.Holder, "reason",
		l.Reason.String(), "held", l.Held, "renewed", l.unconfirmed()}
	switch {
	case l.takenBy() != "":
		args = append(args, "by", l.takenBy())
	case l.Paused > 0:
		args = append(args, "paused", l.Paused)
	case l.Err != nil:
		args = append(args, "err", l.Err)
	}
	s.records = append(s.records, record{time.Now(), level, "lock lost", args})
}

// overError returns the error of a hold that has ended.
func (h *hold) overError() error {
	switch h.state {
	case lost:
		if h.watchers != nil && h.watchers.loss != nil {
			return h.watchers.loss
		}
		return ErrLost
	case forsaken:
		return ErrClosed
	default:
		return ErrNotHeld
	}
}

// ended returns the error that callers get for a hold that has ended. Unlike overError, it adds the
// lock's name to the error if the hold was lost.
func (h *hold) ended() error {
	err := h.overError()
	if h.state == lost {
		return &Error{Op: "hold", Name: h.claim.object.name, Err: err}
	}
	return err
}

// Losses returns the last 64 losses of this client, most recent first. They include expired fixed
// leases.
func (c *Client) Losses() []Loss {
	s := c.lock()
	defer c.mu.Unlock()
	losses := make([]Loss, 0, len(s.lastLosses))
	for _, l := range slices.Backward(s.lastLosses) {
		losses = append(losses, *l)
	}
	return losses
}

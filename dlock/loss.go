package dlock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Loss says how a lock was lost. It is an error that wraps [ErrLost]. [errors.AsType] finds it in
// the cause of a hold's context, in [Hold.Err], and in the error of the unlock. The *[Error] around
// it names the lock; the text of the Loss doesn't.
type Loss struct {
	Name   string
	Kind   backend.Kind
	Holder string // what the store knew the holder by: see [Hold.HolderID]
	Reason LossReason

	// At is when the loss was found, and Held for how long the lock was held until then or, if that was over
	// before, until the lease ended. Unconfirmed is for how long, at the loss, the store had not confirmed
	// the hold.
	At                time.Time
	Held, Unconfirmed time.Duration

	TakenBy string        // of LossTaken: what the store knows the new holder by
	Paused  time.Duration // of LossPaused: for how long the process stood still, at least
	Err     error         // of LossExpired: the store's last error

	// Deprecated: Renewed is Unconfirmed, whose name says what it is.
	Renewed time.Duration

	// Deprecated: By is TakenBy. The By of a [HoldInfo] is a caller in this process.
	By string
}

// A Loss that a program has made itself, for a test say, may have the old names only.

func (l *Loss) unconfirmed() time.Duration { return cmp.Or(l.Unconfirmed, l.Renewed) }

func (l *Loss) takenBy() string { return cmp.Or(l.TakenBy, l.By) }

// LossReason is why a lock was lost.
type LossReason uint8

// Reasons for a [Loss].
const (
	// LossExpired: the lease ran out, because the store didn't answer renewals, or refused them.
	LossExpired LossReason = iota

	// LossGone: the store doesn't have the hold, and nobody else is known to have the lock. Another
	// client or an operator forced it, or the store lost its data. It is also the reason if you ask
	// before the store has said who has the lock now.
	LossGone

	// LossTaken: the store doesn't have the hold, and another has the lock.
	LossTaken

	// LossForced: this client forced the lock.
	LossForced

	// LossPaused: this process stood still, or its machine did, while the lease ran out.
	LossPaused

	// LossLease: its fixed lease ran out, see [FixedLease]. That is as intended, unless the work
	// took too long.
	LossLease
)

// String returns the reason in a word: "expired", "gone", "taken", "forced", "paused" or "lease".
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

// why is what is known about a claim that is lost, or in danger.
type why struct {
	reason LossReason
	had    instant // when the store had it last, if that can't be told from the claim any more
	by     string
	paused time.Duration
	err    error
	said   instant // when a log has last said that a renewal failed; 0: never
}

var gone = why{reason: LossGone}

// takenBy says that the store has given a lock to another.
func takenBy(owner string) why { return why{reason: LossTaken, by: owner} }

// ranOutLocked says why a claim's time is over.
func (c *Client) ranOutLocked(cl *claim, now instant) why {
	w, known := c.troubles[cl]
	stood := c.stoodStillLocked(cl, now)
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

// shortestStall is what isn't noticed.
const shortestStall = 10 * time.Millisecond

// A stall is a time in which what was due wasn't done: this process stood still.
type stall struct{ from, to instant }

// stoodStillLocked returns for how long this process has stood still when a claim's time was over, if that explains why, or 0.
func (c *Client) stoodStillLocked(cl *claim, now instant) time.Duration {
	for _, s := range [...]stall{{c.alarms.nextLocked(now), now}, c.stalled} {
		if s.from < cl.Until() && cl.Until() <= s.to && s.to-s.from >= cl.Effective()/8 {
			return s.to - s.from
		}
	}
	return 0
}

// nextLocked returns when the first alarm was, or is, due, at the latest now.
func (a *alarms) nextLocked(now instant) instant {
	if len(a.heap) == 0 {
		return now
	}
	return min(a.heap[0].at, now)
}

// troubledLocked notes what a renewal that failed, or the store, says about a claim. What is gone is gone.
func (c *Client) troubledLocked(cl *claim, w why) {
	if c.troubles[cl].reason == LossGone {
		return
	}
	if c.troubles == nil {
		c.troubles = make(map[*claim]why)
	}
	w.said = c.troubles[cl].said
	c.troubles[cl] = w
}

// goneLocked ends a claim that the store says it doesn't have. Nobody relies on it from now on; those who have it are told as soon as
// the store has said who has the lock, or hasn't for a moment.
func (c *Client) goneLocked(cl *claim) {
	if c.inspector == nil || rules[cl.kind].many {
		c.loseClaimLocked(cl, gone)
		return
	}
	if c.troubles[cl].reason == LossGone {
		return // and the store is being asked
	}
	had := cl.Confirmed(cl.began)
	cl.Gone(c.now())
	c.troubledLocked(cl, why{reason: LossGone, had: had})
	c.backgroundLocked(func() {
		w := c.whoHas(c.ctx, cl)
		w.had = had
		c.mu.Lock()
		defer c.unlock()
		c.loseClaimLocked(cl, w)
	})
}

// lookLocked has the store asked whether it still has a claim.
func (c *Client) lookLocked(cl *claim) {
	c.backgroundLocked(func() { c.confirm(c.ctx, cl, c.goneLocked) })
}

// inquiryPatience is how long it may take the store to say who has a lock that is lost.
const inquiryPatience = 100 * time.Millisecond

// whoHas asks the store who has what it says that a claim hasn't any more.
func (c *Client) whoHas(ctx context.Context, cl *claim) why {
	if c.inspector == nil {
		return gone
	}
	ctx, cancel := context.WithTimeout(ctx, inquiryPatience)
	defer cancel()
	res, err := step(ctx, c, beside(c.inspector.Inspect), backend.InspectRequest{Name: cl.object.name})
	if err != nil {
		return gone
	}
	for _, h := range res.Holders {
		if h.Owner != cl.owner && rules[h.Kind].family == cl.object.family && !rules[h.Kind].many && !(rules[h.Kind].shared && rules[cl.kind].shared) {
			return takenBy(h.Owner)
		}
	}
	return gone
}

// lossLocked describes the loss of a hold.
func (c *Client) lossLocked(h *hold, w why) *Loss {
	cl, now := h.claim, c.now()
	unconfirmed := now - cmp.Or(w.had, cl.Confirmed(cl.began))
	return &Loss{
		Name: cl.object.name, Kind: h.kind, Holder: cl.owner, Reason: w.reason, Paused: w.paused, Err: w.err,
		At:          c.epoch.Add(now),
		Held:        max(min(now, max(cl.Until(), h.since()))-h.since(), 0),
		Unconfirmed: unconfirmed, Renewed: unconfirmed,
		TakenBy: w.by, By: w.by,
	}
}

// mostLosses is how many losses a client remembers for [Client.Losses].
const mostLosses = 64

// lostLocked notes a loss, and returns it as what ends the contexts of the hold.
func (c *Client) lostLocked(h *hold, l *Loss) error {
	h.watchedLocked().loss = l
	c.counts.lost.Add(1)
	if len(c.lastLosses) == mostLosses {
		c.lastLosses = slices.Delete(c.lastLosses, 0, 1)
	}
	c.lastLosses = append(c.lastLosses, l)
	if h.told {
		h.told = false
		c.traceLocked(func() { c.traceLost(l) })
	}
	return &Error{Op: "hold", Name: l.Name, Err: l}
}

// reportLossLocked logs a loss. That a fixed lease ends is what it is for.
func (c *Client) reportLossLocked(l *Loss) {
	level := slog.LevelWarn
	if l.Reason == LossLease {
		level = slog.LevelInfo
	}
	args := []any{"name", l.Name, "kind", l.Kind.String(), "holder", l.Holder, "reason", l.Reason.String(), "held", l.Held, "renewed", l.unconfirmed()}
	switch {
	case l.takenBy() != "":
		args = append(args, "by", l.takenBy())
	case l.Paused > 0:
		args = append(args, "paused", l.Paused)
	case l.Err != nil:
		args = append(args, "err", l.Err)
	}
	c.records = append(c.records, record{time.Now(), level, "lock lost", args})
}

// overError says how a hold that is not live any more ended.
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

// ended is overError for whom the hold itself is what it is about.
func (h *hold) ended() error {
	err := h.overError()
	if h.state == lost {
		return &Error{Op: "hold", Name: h.claim.object.name, Err: err}
	}
	return err
}

// explained returns the error of a release with how the hold was lost, if it was.
func (c *Client) explained(h *hold, err error) error {
	if err != ErrLost {
		return err
	}
	c.mu.Lock()
	defer c.unlock()
	if h.watchers == nil || h.watchers.loss == nil {
		return err
	}
	return h.watchers.loss
}

// foundLost notes that a hold was lost as its last release has found.
func (c *Client) foundLost(ctx context.Context, h *hold) {
	w := c.whoHas(ctx, h.claim)
	c.mu.Lock()
	defer c.unlock()
	l := c.lossLocked(h, w)
	c.lostLocked(h, l)
	c.reportLossLocked(l)
}

// Losses returns the last 64 losses of this client, the latest first, also those of fixed leases.
func (c *Client) Losses() []Loss {
	c.mu.Lock()
	defer c.mu.Unlock()
	losses := make([]Loss, 0, len(c.lastLosses))
	for _, l := range slices.Backward(c.lastLosses) {
		losses = append(losses, *l)
	}
	return losses
}

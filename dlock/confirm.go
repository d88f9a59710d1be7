package dlock

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// Sometimes a client doesn't know what the store makes of one of its claims, or who has the lock
// instead. Then it asks.

// confirm asks the store whether a claim still exists. If it doesn't, confirm calls the function
// lost. If the store gives no answer, confirm keeps asking in the background.
func (cl *claim) confirm(ctx context.Context, c *Client, lost func(*claim, *state)) {
	if cl.confirmOnce(ctx, c, lost) {
		return
	}
	s := c.lock()
	defer c.unlock()
	s.background(func(c *Client) {
		var tries backoff
		for c.store.Pause(c.ctx, tries.next(firstBackoff, longestPause(c.lease))) &&
			!cl.confirmOnce(c.ctx, c, lost) {
		}
	})
}

// confirmOnce asks the store once whether a claim still exists. If it doesn't, confirmOnce calls
// the function lost. It returns false if the store must be asked again.
func (cl *claim) confirmOnce(ctx context.Context, c *Client, lost func(*claim, *state)) bool {
	c.mu.Lock()
	req := cl.lookRequest()
	c.unlock()
	res, err := steps.Do(ctx, c.store, backend.Session.Look, req)
	s := c.lock()
	defer c.unlock()
	if backend.Kind(cl.kind) != req.Kind {
		return false // the claim was downgraded meanwhile, so the answer is about the write lock
	}
	if isDisplaced(err) {
		res, err = backend.LookResult{}, nil
	}
	if err == nil && res.Count == 0 && !cl.dead {
		lost(cl, s)
	}
	return err == nil || backend.KindOf(err) == backend.Refused || cl.dead || c.now() >= cl.Until()
}

// forced ends a claim because this client has force-unlocked the lock.
func (cl *claim) forced(s *state) { cl.lose(s, why{reason: LossForced}) }

// look asks the store, in the background, whether a claim still exists. If it doesn't, the claim is
// lost.
func (cl *claim) look(s *state) {
	s.background(func(c *Client) { cl.confirm(c.ctx, c, (*claim).foundGone) })
}

// foundGone ends a claim that, according to the store, is gone. The claim becomes invalid at once.
// Its holders are notified once the store has said who holds the lock now, or after
// inquiryPatience.
func (cl *claim) foundGone(s *state) {
	if !s.inspects || cl.kind.Many() {
		cl.lose(s, gone)
		return
	}
	if s.troubles[cl].reason == LossGone {
		return // the store is being asked already
	}
	had := cl.Confirmed(cl.began)
	cl.Gone(s.now())
	cl.troubled(s, why{reason: LossGone, had: had})
	s.background(func(c *Client) {
		w := cl.whoHas(c.ctx, c)
		w.had = had
		s := c.lock()
		defer c.unlock()
		cl.lose(s, w)
	})
}

// troubled records why a claim is in danger: a renewal has failed, or the store no longer has the
// claim. It doesn't overwrite LossGone.
func (cl *claim) troubled(s *state, w why) {
	if s.troubles[cl].reason == LossGone {
		return
	}
	if s.troubles == nil {
		s.troubles = make(map[*claim]why)
	}
	w.said = s.troubles[cl].said
	s.troubles[cl] = w
}

// inquiryPatience limits how long the store may take to say who holds a lost lock.
const inquiryPatience = 100 * time.Millisecond

// whoHas asks the store who holds the lock of a lost claim, and returns the reason for the loss.
func (cl *claim) whoHas(ctx context.Context, c *Client) why {
	if !c.inspects {
		return gone
	}
	ctx, cancel := context.WithTimeout(ctx, inquiryPatience)
	defer cancel()
	res, err := steps.Do(ctx, c.store, steps.Of(c.store.Inspector.Inspect),
		backend.InspectRequest{Name: cl.object.name})
	if err != nil {
		return gone
	}
	for _, h := range res.Holders {
		kind := protocol.Kind(h.Kind)
		if h.Owner != cl.owner && kind.Family() == cl.object.family &&
			!kind.Many() && !(kind.Shared() && cl.kind.Shared()) {
			return takenBy(h.Owner)
		}
	}
	return gone
}

// foundLost records a loss that was discovered by the last release of a hold.
func (h *hold) foundLost(ctx context.Context, c *Client) {
	w := h.claim.whoHas(ctx, c)
	s := c.lock()
	defer c.unlock()
	l := h.newLoss(s, w)
	h.recordLoss(s, l)
	s.reportLoss(l)
}

// explained returns err, the error of a release. But if err is ErrLost and the hold's Loss is
// known, it returns the Loss instead.
func (h *hold) explained(c *Client, err error) error {
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

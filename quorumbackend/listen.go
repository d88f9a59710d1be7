package quorumbackend

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A subscription listens to the store that is asked first for the subscription's lock. If another
// store becomes the first, the subscription moves there. The session's mutex guards its fields.
type subscription struct {
	s      *session
	req    backend.SubscribeRequest
	at     *store
	sub    backend.Subscription
	moving bool
	closed bool
}

// subscribePatience is how long to wait for a subscription, as a multiple of the usual wait for its
// store.
const subscribePatience = 10

// errDeaf is the error of a store that can't send messages about releases.
var errDeaf = &backend.Error{
	Kind: backend.Refused, Err: errors.New("the store sends no messages about releases"),
}

// Subscribe implements [backend.Notifier].
func (s *session) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	if err := s.begin(ctx, req.Kind); err != nil {
		return nil, err
	}
	x := &subscription{s: s, req: req}
	var failures []failure
	order := s.order(req.Name)
	for i, st := range order {
		patience := subscribePatience * s.patience(st)
		if i == len(order)-1 { // wait longer for the last one, but not forever: others may recover
			patience = max(patience, longestPause)
		}
		sub, err := x.subscribe(ctx, st, patience)
		if err != nil {
			failures = append(failures, failure{st, err})
			if backend.KindOf(err) != backend.Refused && ctx.Err() == nil {
				s.failed(st)
			}
			continue
		}
		s.mu.Lock()
		if closed := s.closed; closed {
			s.mu.Unlock()
			sub.Close()
			return nil, &backend.Error{Kind: backend.Refused, Err: errClosed}
		}
		x.at, x.sub = st, sub
		s.subs[x] = struct{}{}
		s.mu.Unlock()
		return x, nil
	}
	return nil, failed(failures, len(s.stores), 1, false)
}

var errClosed = errors.New("the session is closed")

// subscribe subscribes to a store. It gives up after the given time. If the subscription becomes
// active later, it is closed.
func (x *subscription) subscribe(
	ctx context.Context, st *store, patience time.Duration,
) (backend.Subscription, error) {
	if st.tells == nil {
		return nil, errDeaf
	}
	req := x.req
	req.Wake = func(backend.Wakeup) { x.wake() }
	req.Changed = func(broken error) { x.changed(st, broken) }
	if st.prompt {
		return st.tells.Subscribe(ctx, req)
	}
	type answer struct {
		sub backend.Subscription
		err error
	}
	answers := make(chan answer)
	left := make(chan struct{})
	defer close(left)
	ctx, cancel := context.WithCancel(ctx)
	x.s.background(func() {
		defer cancel()
		sub, err := st.tells.Subscribe(ctx, req)
		select {
		case answers <- answer{sub, err}:
		case <-left:
			if err == nil {
				sub.Close()
			}
		}
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.sub, a.err
	case <-timer.C:
	case <-ctx.Done():
	}
	cancel()
	return nil, errUnanswered
}

// wake is called when a store wakes a subscriber. After a split vote, it delays the wake-up, since
// the message might concern votes that were just released. If a subscriber only watches the holders
// of a plain lock, it is woken a little later, since it might look only once, and other stores
// might still be releasing the lock.
func (x *subscription) wake() {
	x.s.mu.Lock()
	var wait time.Duration
	if c := x.s.contests[x.req.Name]; c != nil {
		wait = time.Until(c.quiet)
	}
	x.s.mu.Unlock()
	if x.req.Watches && x.req.Kind == backend.Exclusive && !x.s.prompt {
		for _, st := range x.s.stores {
			wait = max(wait, min(x.s.patience(st), longestSecondLook))
		}
	}
	if wait > 0 {
		time.AfterFunc(wait, func() {
			x.s.mu.Lock()
			closed := x.closed
			x.s.mu.Unlock()
			if !closed {
				x.req.Wake(0)
			}
		})
		return
	}
	x.req.Wake(0)
}

// changed is called when a subscription to a store breaks or is active again.
func (x *subscription) changed(at *store, broken error) {
	x.s.mu.Lock()
	current := x.at == at && !x.closed
	x.s.mu.Unlock()
	if current && broken != nil {
		x.s.desert(at)
	}
	if current && x.req.Changed != nil {
		x.req.Changed(broken)
	}
}

// follow makes all subscriptions for a name listen to a store that refused an attempt, since the
// release there will free the lock.
func (s *session) follow(name string, to *store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.subs {
		if x.req.Name == name && x.at != to {
			s.moveLocked(x, to)
		}
	}
}

// failed records that a store failed. If the store wasn't known to be down, its subscriptions move
// to another store.
func (s *session) failed(st *store) {
	if st.failed() {
		s.desert(st)
	}
}

// desert moves the subscriptions from a store to the next store that isn't down.
func (s *session) desert(st *store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.subs {
		if x.at != st {
			continue
		}
		order := s.orders[home(x.req.Name, len(s.stores))]
		for _, to := range order {
			if to != st && !to.isDown() {
				s.moveLocked(x, to)
				break
			}
		}
	}
}

// moveLocked begins to move a subscription. Once the subscription is active at the new store, it
// wakes its subscriber, since a release might have been missed.
func (s *session) moveLocked(x *subscription, to *store) {
	if x.moving || x.closed || x.at == nil {
		return
	}
	x.moving = true
	s.flying++
	go func() {
		defer s.land()
		sub, err := x.subscribe(s.ctx, to, longestPause)
		s.mu.Lock()
		x.moving = false
		old := x.sub
		switch {
		case err != nil:
			old = nil
		case x.closed:
			old = sub
		default:
			x.at, x.sub = to, sub
		}
		moved := err == nil && !x.closed
		s.mu.Unlock()
		if old != nil {
			old.Close()
		}
		if moved {
			if x.req.Changed != nil {
				x.req.Changed(nil)
			}
			x.wake()
		}
	}()
}

// Close implements [backend.Subscription].
func (x *subscription) Close() {
	x.s.mu.Lock()
	sub := x.closeLocked()
	x.s.mu.Unlock()
	if sub != nil {
		sub.Close()
	}
}

// closeLocked removes a subscription. It returns the store's own subscription for the caller to
// close, or nil if there is nothing to close.
func (x *subscription) closeLocked() backend.Subscription {
	if x.closed {
		return nil
	}
	x.closed = true
	delete(x.s.subs, x)
	return x.sub
}

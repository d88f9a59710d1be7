package redisson

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
)

// turns holds the fair locks that calls of the session wait for, or recently waited for.
type turns struct {
	// mu guards the fields below. It is not held during a request or a callback.
	mu    sync.Mutex
	lines map[string]*line
	// clients contains the client of every owner that has appeared in a request of the session.
	clients map[string]bool
}

// A line is the session's view of one fair lock, including the lock's subscribers.
type line struct {
	seen     observation // the last observation of the server's clock
	hearings map[*hearing]bool
	// grants holds the subscriptions to grant channels, by channel name.
	grants map[string]backend.Subscription
	// turns holds the subscriptions to turn channels, by owner. See turnChannel.
	turns  map[string]backend.Subscription
	broken map[string]bool // the channels in grants that are broken
	// linger is the timer that drops the line. It runs while there are no hearings, and is nil
	// otherwise.
	linger *time.Timer
}

// A hearing is one subscription to a lock.
type hearing struct {
	session *session
	req     backend.SubscribeRequest
}

const (
	// lingers is how long the session listens to a lock's grant channels after the last call has
	// stopped waiting, since another call often starts to wait soon afterwards.
	lingers = 10 * time.Second

	// tooNew is the age at which an observation of the server's clock is replaced by a newer one.
	// Because of this delay, the stored observation is usually older than a grant, even if the
	// message about the grant arrives late. But a newer observation also works (see
	// observation.since).
	tooNew = 500 * time.Millisecond
)

// acquireInLine implements Acquire for the kinds of lock that have a line.
func (s *session) acquireInLine(
	ctx context.Context, k *kind, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if req.Place > 0 {
		if err := s.hearOf(ctx, req.Name, req.Owner); err != nil {
			return backend.AcquireResult{}, err
		}
	}
	for {
		sent := time.Now()
		reply, res, err := s.attempt(ctx, k, req)
		if err != nil {
			s.turns.failed(ctx, req.Name, err)
			return backend.AcquireResult{}, err
		}
		if res.Acquired {
			s.turns.over(req.Name, req.Owner)
			return res, nil
		}
		turn, err := ParseTurn(reply.Value)
		if err != nil {
			return backend.AcquireResult{}, err
		}
		s.turns.saw(req.Name, observation{sent, turn.At})
		if req.Place == 0 || !turn.Redisson || !s.hearTurns(ctx, req.Name, req.Owner) {
			return res, nil
		}
	}
}

// KeepPlaces runs one script for each batch of owners.
func (s *session) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (backend.PlacesResult, error) {
	req.Name = s.Prefix + req.Name
	k, err := s.begin(ctx, req.Kind, req.Name, "")
	if err == nil && !k.line {
		err = backend.UnknownKind(s.Store, req.Kind)
	}
	if err == nil {
		err = s.probe(ctx)
	}
	if err != nil {
		return backend.PlacesResult{}, err
	}
	req.Owners = slices.Clone(req.Owners)
	for i, owner := range req.Owners {
		req.Owners[i] = k.called(owner)
	}
	if err := s.hearOf(ctx, req.Name, req.Owners...); err != nil {
		return backend.PlacesResult{}, err
	}
	for {
		sent := time.Now()
		turn, err := s.keepPlaces(ctx, req)
		if err != nil {
			s.turns.failed(ctx, req.Name, err)
			return backend.PlacesResult{}, err
		}
		s.turns.saw(req.Name, observation{sent, turn.At})
		if turn.Redisson && s.hearTurns(ctx, req.Name, req.Owners...) {
			continue
		}
		res := backend.PlacesResult{Remaining: turn.Remaining}
		if slices.Contains(req.Owners, turn.Holder) {
			res.Holder = outOfLine(turn.Holder)
		}
		return res, nil
	}
}

// keepPlaces extends the owners' places in line. If one of the owners now holds the lock, and
// replicas must acknowledge that, keepPlaces runs the script once more for this owner, and asks how
// many replicas acknowledged it.
func (s *session) keepPlaces(ctx context.Context, req backend.PlacesRequest) (Turn, error) {
	turn, err := s.keepPortions(ctx, s.Dialect.KeepPlaces(req))
	if err != nil || s.Replicas.N == 0 || !slices.Contains(req.Owners, turn.Holder) {
		return turn, err
	}
	req.Owners = []string{turn.Holder}
	call := s.Dialect.KeepPlaces(req)[0]
	replies := runWith(ctx, s.Transport.SendApart, call, []Command{{}, s.Replicas.wait()})
	turn, err = parse(replies[0], ParseTurn)
	if err != nil || !slices.Contains(req.Owners, turn.Holder) {
		return turn, err
	}
	if err := s.Replicas.acknowledged(replies[1]); err != nil {
		return Turn{}, &backend.Error{Kind: backend.Unknown, Err: err}
	}
	return turn, nil
}

// keepPortions sends the calls that extend places in line, each for some of the owners. It returns
// the state of the lock after the last call. It sends the first call alone: that call also removes
// the expired entries of the line, so it may have to be sent several times. keepPortions then sends
// the other calls together, and the server carries them out in order.
func (s *session) keepPortions(ctx context.Context, calls []Call) (turn Turn, err error) {
	turn, err = parse(s.run(ctx, calls[0]), ParseTurn)
	if err != nil {
		return turn, err
	}
	for some := range slices.Chunk(calls[1:], maxSteps) {
		for _, r := range s.runTogether(ctx, some) {
			if turn, err = parse(r, ParseTurn); err != nil {
				// the earlier calls were carried out
				return Turn{}, &backend.Error{Kind: backend.Unknown, Err: err}
			}
		}
	}
	return turn, nil
}

// listenInLine implements Subscribe for the kinds of lock that have a line.
func (s *session) listenInLine(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	h := &hearing{s, req}
	for _, client := range s.turns.join(h, s.Dialect.grants(req.Name)) {
		if err := s.hear(ctx, req.Name, client); err != nil {
			h.Close()
			return nil, err
		}
	}
	return h, nil
}

// hearOf listens on the grant channels of the owners' clients. A message on such a channel says
// that an owner was given the lock. If the lock has no subscribers, hearOf only records the
// clients.
func (s *session) hearOf(ctx context.Context, name string, owners ...string) error {
	for _, client := range s.turns.unheard(name, s.Dialect.grants(name), owners) {
		if err := s.hear(ctx, name, client); err != nil {
			return err
		}
	}
	return nil
}

// hear listens on a client's grant channel. See Dialect.grants.
func (s *session) hear(ctx context.Context, name, client string) error {
	channel := s.Dialect.grants(name) + client
	sub, err := s.Subscriber.Listen(ctx, channel, s.granted, func() { s.missed(name) },
		func(broken error) { s.changed(name, channel, broken) })
	if err == nil {
		s.turns.keep(name, grantsOf, channel, sub)
	}
	return err
}

// hearTurns subscribes to the channels on which Redisson tells owners in line to try again. It
// returns true if there is any new subscription. The caller must then try again, since it may have
// missed earlier messages. If the subscription to an owner's channel fails, that owner polls
// instead.
func (s *session) hearTurns(ctx context.Context, name string, owners ...string) bool {
	var running sync.WaitGroup
	var begun atomic.Bool
	for _, owner := range s.turns.deaf(name, owners) {
		running.Go(func() {
			ask := func(pubsub.Meaning) { s.tell(name, backend.Grant{Owner: outOfLine(owner)}) }
			sub, err := s.Subscriber.Subscribe(ctx, turnChannel(name, owner), Unlocked, ask, nil)
			if err == nil {
				s.turns.keep(name, turnsOf, owner, sub)
				begun.Store(true)
			}
		})
	}
	running.Wait()
	return begun.Load()
}

// granted handles a message saying that a lock was given to an owner. It notifies the lock's
// subscribers.
func (s *session) granted(message string) {
	heard := time.Now()
	g, ok := ParseGranted(message)
	if !ok {
		return
	}
	grant := backend.Grant{Owner: outOfLine(g.Owner)}
	if since, ok := s.turns.translate(g, heard); ok && s.Replicas.N == 0 {
		grant.Since, grant.Lease = since, g.Lease
	}
	s.tell(g.Name, grant)
}

// tell notifies all subscribers of a lock about a grant.
func (s *session) tell(name string, grant backend.Grant) {
	for _, h := range s.turns.audience(name) {
		if h.req.Granted != nil {
			h.req.Granted(grant)
		}
	}
}

// missed makes all subscribers of a lock ask again, since messages may have been lost. It also
// forgets the server's clock, since another server may have taken over.
func (s *session) missed(name string) {
	s.turns.forget(name)
	for _, h := range s.turns.audience(name) {
		h.req.Wake(0)
	}
}

// changed records that a channel of a lock broke, or works again if broken is nil. It notifies the
// lock's subscribers if this is the first channel to break, or the last one to work again.
func (s *session) changed(name, channel string, broken error) {
	if !s.turns.changed(name, channel, broken != nil) {
		return
	}
	for _, h := range s.turns.audience(name) {
		if h.req.Changed != nil {
			h.req.Changed(broken)
		}
	}
}

// outOfLine is the inverse of inLine.
func outOfLine(owner string) string { return strings.TrimSuffix(owner, fairSuffix) }

// join adds a subscriber. It returns the clients whose grant channels the session doesn't listen to
// yet. The names of these channels begin with prefix.
func (t *turns) join(h *hearing, prefix string) (clients []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[h.req.Name]
	if l == nil {
		l = &line{
			hearings: make(map[*hearing]bool),
			grants:   make(map[string]backend.Subscription),
			turns:    make(map[string]backend.Subscription),
			broken:   make(map[string]bool),
		}
		if t.lines == nil {
			t.lines = make(map[string]*line)
		}
		t.lines[h.req.Name] = l
	}
	if l.linger != nil {
		l.linger.Stop()
		l.linger = nil
	}
	l.hearings[h] = true
	for client := range t.clients {
		if l.grants[prefix+client] == nil {
			clients = append(clients, client)
		}
	}
	return clients
}

func grantsOf(l *line) map[string]backend.Subscription { return l.grants }
func turnsOf(l *line) map[string]backend.Subscription  { return l.turns }

// Close ends the subscription.
func (h *hearing) Close() {
	t, name := &h.session.turns, h.req.Name
	t.mu.Lock()
	l := t.lines[name]
	delete(l.hearings, h)
	var idle map[string]backend.Subscription
	if len(l.hearings) == 0 {
		idle, l.turns = l.turns, make(map[string]backend.Subscription)
		l.linger = time.AfterFunc(lingers, func() { t.drop(name) })
	}
	t.mu.Unlock()
	closeAll(idle)
}

// drop removes a lock for which no call has waited recently.
func (t *turns) drop(name string) {
	t.mu.Lock()
	l := t.lines[name]
	if l == nil || len(l.hearings) > 0 {
		t.mu.Unlock()
		return
	}
	delete(t.lines, name)
	t.mu.Unlock()
	closeAll(l.grants)
}

func closeAll(subs map[string]backend.Subscription) {
	for _, sub := range subs {
		sub.Close()
	}
}

// unheard records the clients of the given owners. If the lock has subscribers, it returns the
// clients whose grant channels the session doesn't listen to yet. The names of these channels begin
// with prefix.
func (t *turns) unheard(name, prefix string, owners []string) (clients []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[name]
	for _, owner := range owners {
		client := clientOf(outOfLine(owner))
		if !t.clients[client] {
			if t.clients == nil {
				t.clients = make(map[string]bool)
			}
			t.clients[client] = true
		}
		if l != nil && len(l.hearings) > 0 && l.grants[prefix+client] == nil &&
			!slices.Contains(clients, client) {
			clients = append(clients, client)
		}
	}
	return clients
}

// deaf returns those owners whose turn channels (see turnChannel) the session doesn't listen to. If
// the lock has no subscribers, it returns nil.
func (t *turns) deaf(name string, owners []string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[name]
	if l == nil || len(l.hearings) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(owners), func(owner string) bool {
		return l.turns[owner] != nil
	})
}

// keep stores a subscription. If the line already has one for this channel or owner, or no longer
// has subscribers, keep closes the new subscription instead.
func (t *turns) keep(
	name string, where func(*line) map[string]backend.Subscription, what string,
	sub backend.Subscription,
) {
	t.mu.Lock()
	if l := t.lines[name]; l != nil && len(l.hearings) > 0 && where(l)[what] == nil {
		where(l)[what] = sub
		sub = nil
	}
	t.mu.Unlock()
	if sub != nil {
		sub.Close()
	}
}

// over ends the subscription to the turn channel of an owner that is no longer waiting. See
// turnChannel.
func (t *turns) over(name, owner string) {
	t.mu.Lock()
	var sub backend.Subscription
	if l := t.lines[name]; l != nil {
		sub = l.turns[owner]
		delete(l.turns, owner)
	}
	t.mu.Unlock()
	if sub != nil {
		sub.Close()
	}
}

// saw records an observation of the server's clock. It keeps the previous observation if that is
// younger than tooNew and the server's clock hasn't been set forward since.
func (t *turns) saw(name string, o observation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[name]
	if l == nil {
		return
	}
	if _, ok := l.seen.since(o.at, time.Now()); !ok || o.sent.Sub(l.seen.sent) > tooNew {
		l.seen = o
	}
}

// failed handles the failure of a step. It drops the observation of the server's clock, since
// another server may have taken over.
func (t *turns) failed(ctx context.Context, name string, err error) {
	if ctx.Err() == nil && backend.KindOf(err) != backend.Refused {
		t.forget(name)
	}
}

// forget drops the observation of the server's clock.
func (t *turns) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[name]; l != nil {
		l.seen = observation{}
	}
}

// translate returns the time of a grant on this process's clock. As with observation.since, the
// result isn't later than the actual moment of the grant unless the server's clock was set.
// translate returns false if it can't determine that time, or if the grant's lease has expired.
func (t *turns) translate(g Grant, heard time.Time) (time.Time, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[g.Name]
	if l == nil {
		return time.Time{}, false
	}
	since, ok := l.seen.since(g.At, heard)
	return since, ok && heard.Before(since.Add(g.Lease))
}

// changed records that a channel of a lock is broken, or works again. It reports whether this
// channel is the first one to break, or the last one to work again.
func (t *turns) changed(name, channel string, broken bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[name]
	if l == nil {
		return false
	}
	stood := len(l.broken) == 0
	if broken {
		l.broken[channel] = true
	} else {
		delete(l.broken, channel)
	}
	return stood != (len(l.broken) == 0)
}

// audience returns the subscribers of a lock.
func (t *turns) audience(name string) []*hearing {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[name]; l != nil {
		return slices.Collect(maps.Keys(l.hearings))
	}
	return nil
}

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

// turns are a session's fair locks for which somebody waits, or did a moment ago.
type turns struct {
	mu      sync.Mutex // never held while anything is sent or called
	lines   map[string]*line
	clients map[string]bool // of the owners that the session was asked about
}

// A line is what a session knows of one lock, and whom it tells of it.
type line struct {
	seen     observation // of the server's clock
	hearings map[*hearing]bool
	grants   map[string]backend.Subscription // by the channel on which a client is told who was given the lock
	turns    map[string]backend.Subscription // by the owner whom Redisson tells that it is his turn
	broken   map[string]bool                 // which of grants don't stand
	linger   *time.Timer                     // runs while nobody listens; else nil
}

// A hearing is somebody who wants to be told.
type hearing struct {
	session *session
	req     backend.SubscribeRequest
}

const (
	// lingers is for how long a channel is listened to when nobody waits any more: somebody may again, soon.
	lingers = 10 * time.Second

	// tooNew is the age up to which an observation of the server's clock isn't replaced: a grant that comes late may be older than the newest.
	tooNew = 500 * time.Millisecond
)

// acquireInLine is Acquire for locks with a line.
func (s *session) acquireInLine(ctx context.Context, k *kind, req backend.AcquireRequest) (backend.AcquireResult, error) {
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

// KeepPlaces is one script for each portion of the owners.
func (s *session) KeepPlaces(ctx context.Context, req backend.PlacesRequest) (backend.PlacesResult, error) {
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

// keepPlaces keeps places. If one of the owners is found to have the lock, that one is kept again
// to ask how many replicas have acknowledged it, where that is asked for.
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

// keepPortions keeps the places of portions, and returns how the lock is held in the end. The first
// is sent alone: it takes what is over out of the front of the line, so that the others, which go
// together, have no more to do than their portions, and come back in order.
func (s *session) keepPortions(ctx context.Context, calls []Call) (turn Turn, err error) {
	turn, err = parse(s.run(ctx, calls[0]), ParseTurn)
	if err != nil {
		return turn, err
	}
	for some := range slices.Chunk(calls[1:], maxSteps) {
		for _, r := range s.runTogether(ctx, some) {
			if turn, err = parse(r, ParseTurn); err != nil {
				return Turn{}, &backend.Error{Kind: backend.Unknown, Err: err} // a part was carried out
			}
		}
	}
	return turn, nil
}

// listenInLine is Subscribe for locks with a line.
func (s *session) listenInLine(ctx context.Context, req backend.SubscribeRequest) (backend.Subscription, error) {
	h := &hearing{s, req}
	for _, client := range s.turns.join(h, s.Dialect.grants(req.Name)) {
		if err := s.hear(ctx, req.Name, client); err != nil {
			h.Close()
			return nil, err
		}
	}
	return h, nil
}

// hearOf listens for what the clients of owners are told, if somebody wants to be told of that lock.
func (s *session) hearOf(ctx context.Context, name string, owners ...string) error {
	for _, client := range s.turns.unheard(name, s.Dialect.grants(name), owners) {
		if err := s.hear(ctx, name, client); err != nil {
			return err
		}
	}
	return nil
}

// hear listens for what a client is told.
func (s *session) hear(ctx context.Context, name, client string) error {
	channel := s.Dialect.grants(name) + client
	sub, err := s.Subscriber.Listen(ctx, channel, s.granted, func() { s.missed(name) }, func(broken error) { s.changed(name, channel, broken) })
	if err == nil {
		s.turns.keep(name, grantsOf, channel, sub)
	}
	return err
}

// hearTurns listens for what Redisson tells owners. It says whether it did not before, so that they may have missed something.
// If it can't they look by themselves.
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

// granted tells of a lock that was given to an owner of a client's.
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

// tell tells all who want to be told about a lock.
func (s *session) tell(name string, grant backend.Grant) {
	for _, h := range s.turns.audience(name) {
		if h.req.Granted != nil {
			h.req.Granted(grant)
		}
	}
}

// missed has everybody look again: something may have been said that nobody heard, and by another server.
func (s *session) missed(name string) {
	s.turns.forget(name)
	for _, h := range s.turns.audience(name) {
		h.req.Wake(0)
	}
}

// changed tells those who want to be told of a lock when the first of the channels for it breaks, and when all stand again.
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

// outOfLine is what an owner of a fair lock is called outside.
func outOfLine(owner string) string { return strings.TrimSuffix(owner, fairSuffix) }

// join adds somebody who wants to be told, and returns the clients that are not listened for yet. Their channels begin with a prefix.
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

// Close gives the hearing up.
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

// drop forgets a lock for which nobody has waited for a while.
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

// unheard notes the clients of owners, and returns those that are not listened for though somebody wants to be told. Their channels begin
// with a prefix.
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
		if l != nil && len(l.hearings) > 0 && l.grants[prefix+client] == nil && !slices.Contains(clients, client) {
			clients = append(clients, client)
		}
	}
	return clients
}

// deaf returns those of owners whose turns are not listened for, if somebody wants to be told.
func (t *turns) deaf(name string, owners []string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[name]
	if l == nil || len(l.hearings) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(owners), func(owner string) bool { return l.turns[owner] != nil })
}

// keep puts a subscription where it belongs, unless there is one already, or no need any more.
func (t *turns) keep(name string, where func(*line) map[string]backend.Subscription, what string, sub backend.Subscription) {
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

// over notes that an owner doesn't wait any more.
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

// saw notes what the server's clock said, unless the last observation is new, and it can have gone on since.
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

// failed notes that a step has failed, perhaps because there is another server.
func (t *turns) failed(ctx context.Context, name string, err error) {
	if ctx.Err() == nil && backend.KindOf(err) != backend.Refused {
		t.forget(name)
	}
}

// forget forgets what the server's clock said.
func (t *turns) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[name]; l != nil {
		l.seen = observation{}
	}
}

// translate returns an instant of ours that surely isn't later than a grant. It is false if there is none, or the lease is over.
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

// changed notes that a channel for a lock is broken, or isn't any more. It says whether all stood before, or all do now.
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

// audience returns those who want to be told about a lock.
func (t *turns) audience(name string) []*hearing {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[name]; l != nil {
		return slices.Collect(maps.Keys(l.hearings))
	}
	return nil
}

package pubsub

import (
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

const (
	// maxOrder is the largest number of channels in one call of Tell.
	maxOrder = 1000

	// maxIdle is how long a connection without subscriptions is kept.
	maxIdle = time.Minute
)

// A server holds the state of one of the servers that serve channels. It has at most one connection
// at a time.
type server struct {
	addr string
	kick chan struct{} // wakes run

	// The fields below are guarded by the subscriber's mutex.
	connect  func(*Receiver) Conn
	receiver *Receiver           // the receiver of the current connection
	todo     map[string]*channel // the channels that need a command
	// failures counts consecutive connections that ended without a confirmed subscription.
	failures int
	// failed is the error of the last of these connections.
	failed error
	// pause is the end of the current pause. No new connection is made before then.
	pause time.Time
}

// server returns the server with the address located.Addr. If there is none yet, server creates it
// and starts run for it. The caller must hold s.mu.
func (s *Subscriber) server(located Server) *server {
	srv := s.servers[located.Addr]
	if srv == nil {
		srv = &server{
			addr: located.Addr, kick: make(chan struct{}, 1), todo: make(map[string]*channel),
		}
		s.servers[located.Addr] = srv
		go s.run(srv)
	}
	// The client library may now use a new object for the same server.
	srv.connect = located.Connect
	return srv
}

// wake makes run send due commands.
func (srv *server) wake() {
	select {
	case srv.kick <- struct{}{}:
	default: // run wakes anyway
	}
}

// run keeps a server connected, using one connection after another, until the server is dropped or
// the session is closed.
func (s *Subscriber) run(srv *server) {
	for s.needed(srv) {
		receiver := &Receiver{subscriber: s, server: srv}
		s.mu.Lock()
		srv.receiver = receiver
		connect := srv.connect
		s.mu.Unlock()
		conn := connect(receiver)
		err := s.serve(srv, conn)
		if err != nil {
			s.lost(receiver, s.client.Kind(err))
		}
		conn.Close() // may be slow if the server hangs
		if err == nil {
			return
		}
	}
}

// drop drops a server without subscribers. It returns false if there are subscribers.
func (s *Subscriber) drop(srv *server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []*channel // the server's channels, none of which has subscribers
	for _, ch := range s.channels {
		if ch.server != srv {
			continue
		}
		if len(ch.subs) > 0 {
			return false
		}
		left = append(left, ch)
	}
	for _, ch := range left {
		ch.become(off)
		ch.server, ch.alone, ch.refused, ch.stuck = nil, false, false, false
		s.settle(ch)
	}
	delete(s.servers, srv.addr)
	return true
}

// needed waits until there is a command to send, and the pause after the last failure is over. It
// returns false when the server is dropped or the session is closed.
func (s *Subscriber) needed(srv *server) bool {
	for {
		s.mu.Lock()
		wanted, pause := len(srv.todo) > 0, time.Until(srv.pause)
		s.mu.Unlock()
		if s.ctx.Err() != nil {
			return false
		}
		if wanted && pause <= 0 {
			return true
		}
		wait := maxIdle
		if wanted {
			wait = pause
		}
		select {
		case <-time.After(wait):
			if !wanted && s.drop(srv) {
				return false
			}
		case <-srv.kick:
		case <-s.ctx.Done():
		}
	}
}

// serve sends commands until the connection is lost or the session is closed. It returns nil when
// the server is dropped.
func (s *Subscriber) serve(srv *server, conn Conn) error {
	idle := time.NewTimer(maxIdle)
	defer idle.Stop()
	var check <-chan time.Time
	if s.options.CheckEvery > 0 {
		ticker := time.NewTicker(s.options.CheckEvery)
		defer ticker.Stop()
		check = ticker.C
	}
	for {
		for verb, orders := s.next(srv); verb != ""; verb, orders = s.next(srv) {
			if err := s.tell(conn, verb, orders); err != nil {
				return err
			}
		}
		select {
		case <-srv.kick:
			idle.Reset(maxIdle)
		case <-idle.C:
			if s.drop(srv) {
				return nil
			}
			idle.Reset(maxIdle)
		case err, ok := <-conn.Lost():
			if !ok {
				return errLost
			}
			return err
		case <-check:
			if err := s.tell(conn, Ping, make([][]*channel, 1)); err != nil {
				return err
			}
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

// next returns the next commands for the server, if any. It already marks them as sent, since the
// server may confirm them before Tell returns.
func (s *Subscriber) next(srv *server) (verb Verb, orders [][]*channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	verb, orders = s.together(srv)
	for _, channels := range orders {
		for _, ch := range channels {
			delete(srv.todo, ch.name)
			if verb == Unsubscribe {
				ch.become(leaving)
			} else {
				ch.become(asked)
			}
		}
	}
	return verb, orders
}

// together picks a command that some of the server's channels need, and returns it with the orders
// to send. Each order lists channels that can share one command. The orders contain up to maxOrder
// channels in total.
func (s *Subscriber) together(srv *server) (verb Verb, orders [][]*channel) {
	var shared []*channel
	for _, ch := range srv.todo {
		if verb == "" {
			verb = ch.wants()
		}
		switch {
		case ch.wants() != verb:
		case s.options.Sharded || ch.alone:
			orders = append(orders, []*channel{ch})
		default:
			shared = append(shared, ch)
		}
		if len(orders)+len(shared) == maxOrder {
			break
		}
	}
	if len(shared) > 0 {
		orders = append(orders, shared)
	}
	return verb, orders
}

// tell sends commands, and handles refusals by the server. It returns an error if the connection
// can no longer be used.
func (s *Subscriber) tell(conn Conn, verb Verb, orders [][]*channel) error {
	names := make([][]string, len(orders))
	for i, channels := range orders {
		for _, ch := range channels {
			names[i] = append(names[i], ch.name)
		}
	}
	refusals, err := conn.Tell(s.ctx, verb, names)
	if err != nil {
		return err
	}
	for i, refusal := range refusals {
		if refusal == nil {
			continue
		}
		if err := s.refused(verb, orders[i], refusal); err != nil {
			return err
		}
	}
	return nil
}

// refused handles a command that the server refuses. It returns the refusal if the connection can
// no longer be used.
func (s *Subscriber) refused(verb Verb, channels []*channel, refusal error) error {
	kinded := s.client.Kind(refusal)
	switch {
	case verb == Subscribe && s.options.Spread && errors.Is(refusal, ErrMoved):
		s.moved(channels)
		return nil
	case backend.KindOf(kinded) == backend.Refused:
		s.refuse(verb, channels, kinded)
		return nil
	default:
		return refusal
	}
}

// moved records that the channels have moved to another server.
func (s *Subscriber) moved(channels []*channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range channels {
		ch.become(off)
		s.leave(ch)
	}
}

// refuse records that the server refuses a command for these channels.
func (s *Subscriber) refuse(verb Verb, channels []*channel, err error) {
	s.mu.Lock()
	var wakes []func(Meaning)
	for _, ch := range channels {
		switch {
		case verb == Unsubscribe:
			ch.stuck = true
			wakes = append(wakes, s.stands(ch)...)
		case len(channels) > 1: // the error doesn't say which channel
			ch.become(off)
			ch.alone = true
			s.settle(ch)
		default:
			ch.become(off)
			ch.refused = true
			wakes = ch.standing()
			ch.answer(err)
			s.settle(ch)
		}
	}
	s.mu.Unlock()
	wakeAll(wakes, Missed)
}

// lost records that a connection is lost. The server's subscriptions end with the connection, but
// the subscribers stay, and the next connection subscribes for them again. Waiting calls to
// Subscribe return an error at once.
func (s *Subscriber) lost(r *Receiver, err error) {
	if s.ctx.Err() == nil {
		s.client.Reload(s.ctx) // another server may have its channels now
	}
	defer s.tellChanges()
	s.mu.Lock()
	defer s.mu.Unlock()
	srv := r.server
	srv.receiver = nil
	srv.failed = err
	srv.failures++
	if r.served {
		srv.failures = 0
	}
	srv.pause = time.Now().Add(backoff(srv.failures))
	for _, ch := range s.channels {
		if ch.server != srv {
			continue
		}
		ch.become(off)
		ch.alone, ch.refused, ch.stuck = false, false, false
		s.report(ch, srv.failed)
		ch.answer(srv.failed)
		s.leave(ch)
	}
}

// A Receiver receives a server's messages from one connection. Its methods don't block, except in
// callbacks of subscribers. After the connection is lost, or the session is closed, they do
// nothing.
type Receiver struct {
	subscriber *Subscriber
	server     *server
	// served is set once a subscription is confirmed. It is guarded by the subscriber's mutex.
	served bool
}

// Published is called for every message.
func (r *Receiver) Published(name, message string) {
	r.about(name, func(ch *channel) ([]func(Meaning), Meaning) {
		wakes := ch.standing()
		if len(wakes) == 0 {
			return nil, 0
		}
		if hear := ch.hear; hear != nil {
			return []func(Meaning){func(Meaning) { hear(message) }}, 0
		}
		why, ok := ch.decode(message)
		if !ok {
			return nil, 0
		}
		return wakes, why
	})
}

// Subscribed is called when the server has confirmed a subscription.
func (r *Receiver) Subscribed(name string) {
	r.about(name, func(ch *channel) ([]func(Meaning), Meaning) {
		if ch.state != asked {
			return nil, 0
		}
		r.served = true
		return r.subscriber.stands(ch), Missed
	})
}

// Unsubscribed is called when the server has ended a subscription, because the client asked for
// that or because the channel's slot has moved to another server.
func (r *Receiver) Unsubscribed(name string) {
	r.about(name, func(ch *channel) ([]func(Meaning), Meaning) {
		switch ch.state {
		case leaving:
			ch.become(off)
			r.subscriber.settle(ch)
		case on:
			ch.become(off)
			r.subscriber.report(ch, errEnded)
			r.subscriber.leave(ch)
		}
		return nil, 0
	})
}

// about runs the callback for a channel, if r still belongs to the server's current connection. It
// then calls the functions that the callback returned.
func (r *Receiver) about(name string, do func(*channel) ([]func(Meaning), Meaning)) {
	s := r.subscriber
	s.mu.Lock()
	var wakes []func(Meaning)
	var why Meaning
	ch := s.channels[name]
	if ch != nil && ch.server == r.server && r.server.receiver == r && s.ctx.Err() == nil {
		wakes, why = do(ch)
	}
	changed := len(s.changes) > 0
	s.mu.Unlock()
	if changed {
		s.tellChanges()
	}
	wakeAll(wakes, why)
}

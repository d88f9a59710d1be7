package pubsub

import (
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

const (
	// maxOrder is how many channels the server is told about at once.
	maxOrder = 1000

	// maxIdle is how long a connection is kept that carries no subscription.
	maxIdle = time.Minute
)

// A server is where channels are subscribed: over one connection at a time.
type server struct {
	addr string
	kick chan struct{} // tells run that there is something to do

	// Guarded by the subscriber's mutex.
	connect  func(*Receiver) Conn
	receiver *Receiver           // of the present connection
	todo     map[string]*channel // those of its channels that want something of it
	failures int                 // connections in a row that served nobody
	failed   error               // of the last of them
	pause    time.Time           // no new connection before
}

// server returns the server that was located. The mutex is held.
func (s *Subscriber) server(located Server) *server {
	srv := s.servers[located.Addr]
	if srv == nil {
		srv = &server{addr: located.Addr, kick: make(chan struct{}, 1), todo: make(map[string]*channel)}
		s.servers[located.Addr] = srv
		go s.run(srv)
	}
	srv.connect = located.Connect // the newest: a client may have replaced its own idea of the server
	return srv
}

// wake tells run that there is something to do.
func (srv *server) wake() {
	select {
	case srv.kick <- struct{}{}:
	default: // it is awake
	}
}

// run makes connections to a server, one after the other, until it is dropped or the session closed.
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
		conn.Close() // may take its time if the server hangs
		if err == nil {
			return
		}
	}
}

// drop forgets a server that nobody needs. It returns false if somebody does.
func (s *Subscriber) drop(srv *server) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []*channel // that it took for subscribed
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

// needed waits until a connection is needed and may be made. It returns false when the server is
// dropped or the session closed.
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

// serve sends what is to be sent, until the connection is lost or the session closed. It returns nil
// when the server is dropped.
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

// next returns what to tell the server next, if there is anything. It is noted as told before it
// is, since it may be done at any time after.
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

// together picks channels that want the same: those that may share a command, and others.
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

// tell sends commands and does what is to be done about those that the server refuses. It returns an
// error if the connection cannot be used further.
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

// refused does what is to be done when the server refuses a command. It returns the refusal if the
// connection cannot be used further.
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

// moved notes that another server has the channels.
func (s *Subscriber) moved(channels []*channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ch := range channels {
		ch.become(off)
		s.leave(ch)
	}
}

// refuse notes that the server refuses what it was told.
func (s *Subscriber) refuse(verb Verb, channels []*channel, err error) {
	s.mu.Lock()
	var wakes []func(Meaning)
	for _, ch := range channels {
		switch {
		case verb == Unsubscribe:
			ch.stuck = true
			wakes = append(wakes, s.stands(ch)...)
		case len(channels) > 1: // it is not said which
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

// lost notes that a connection, and with it all the server knew, is gone. Those who are subscribed
// stay so, and will be when there is another; those who wait are told, so that they need not.
func (s *Subscriber) lost(r *Receiver, err error) {
	if s.ctx.Err() == nil {
		s.client.Reload(s.ctx) // the server may be gone for good
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

// A Receiver takes what a server says on one connection. Its methods don't block, but for the
// callbacks of those who wait. After the connection is given up, or the session closed, they do
// nothing.
type Receiver struct {
	subscriber *Subscriber
	server     *server
	served     bool // a subscription was confirmed; guarded by the subscriber's mutex
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

// Unsubscribed is called when the server has ended a subscription: as it was told to, or because the
// channel's slot has gone to another.
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

// about does something with a channel, and then wakes those it names.
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

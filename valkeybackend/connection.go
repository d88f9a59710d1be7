package valkeybackend

import (
	"context"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// A connection is one to a server that carries nothing but subscriptions.
type connection struct {
	client valkey.DedicatedClient
	lost   <-chan error // gets why it cannot be used any more, or is closed
	served bool         // a subscription was confirmed; guarded by the subscriber's mutex
}

const (
	subscribe   = "subscribe"
	unsubscribe = "unsubscribe"
)

const (
	maxOrder     = 1000             // channels in one command
	replyTimeout = 10 * time.Second // to connect and to answer a command
	minPause     = 20 * time.Millisecond
	maxPause     = 2 * time.Second
)

// run makes connections, one after the other.
func (s *subscriber) run() {
	for s.needed() {
		conn := s.connect()
		err := s.serve(conn)
		s.lost(err, conn)
		conn.client.Close()
	}
}

// needed waits until a connection is needed and may be made. It returns false when the session is
// closed.
func (s *subscriber) needed() bool {
	for {
		s.mu.Lock()
		wanted, pause := len(s.todo) > 0, time.Until(s.pause)
		s.mu.Unlock()
		if s.ctx.Err() != nil {
			return false
		}
		if wanted && pause <= 0 {
			return true
		}
		var timer <-chan time.Time
		if wanted {
			timer = time.After(pause)
		}
		select {
		case <-timer:
		case <-s.kick:
		case <-s.ctx.Done():
		}
	}
}

// connect returns a connection. If none can be made, its first command says why.
func (s *subscriber) connect() *connection {
	conn := new(connection)
	conn.client, _ = s.client.Dedicate() // Close ends it
	conn.lost = conn.client.SetPubSubHooks(valkey.PubSubHooks{
		OnMessage:      func(msg valkey.PubSubMessage) { s.published(conn, msg) },
		OnSubscription: func(done valkey.PubSubSubscription) { s.confirmed(conn, done) },
	})
	s.mu.Lock()
	s.conn = conn
	s.mu.Unlock()
	return conn
}

// serve sends what is to be sent, until the connection is lost or the session closed.
func (s *subscriber) serve(conn *connection) error {
	for {
		for verb, channels := s.next(); verb != ""; verb, channels = s.next() {
			if err := s.tell(conn, verb, channels); err != nil {
				return err
			}
		}
		select {
		case <-s.kick:
		case err := <-conn.lost:
			if err == nil {
				err = errLost
			}
			return err
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

// next returns what to tell the server next, if there is anything. It is noted as told before it
// is, since it may be done at any time after.
func (s *subscriber) next() (verb string, channels []*channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	channels = s.together()
	if len(channels) == 0 {
		return "", nil
	}
	verb = channels[0].wants()
	for _, ch := range channels {
		delete(s.todo, ch.name)
		ch.state = asked
		if verb == unsubscribe {
			ch.state = leaving
		}
	}
	return verb, channels
}

// together picks channels that want the same.
func (s *subscriber) together() (channels []*channel) {
	for _, ch := range s.todo {
		switch {
		case len(channels) == maxOrder:
			return channels
		case len(channels) == 0:
			channels = append(channels, ch)
			if ch.alone {
				return channels
			}
		case !ch.alone && ch.wants() == channels[0].wants():
			channels = append(channels, ch)
		}
	}
	return channels
}

// tell sends one command and waits for its answer. The answer says whether the server does it for
// any of the channels; for which, and when, it confirms for each. It returns an error if the
// connection cannot be used further.
func (s *subscriber) tell(conn *connection, verb string, channels []*channel) error {
	names := make([]string, len(channels))
	for i, ch := range channels {
		names[i] = ch.name
	}
	var cmd valkey.Completed
	if b := s.client.B(); verb == subscribe {
		cmd = b.Subscribe().Channel(names...).Build()
	} else {
		cmd = b.Unsubscribe().Channel(names...).Build()
	}
	ctx, cancel := context.WithTimeout(s.ctx, replyTimeout)
	defer cancel()
	err := conn.client.Do(ctx, cmd).Error()
	if err == nil || valkey.IsValkeyNil(err) {
		return nil
	}
	refusal, ok := valkey.IsValkeyErr(err)
	if !ok {
		return err
	}
	kinded := s.withKind(refusal)
	if backend.KindOf(kinded) != backend.Refused {
		return err
	}
	s.refuse(verb, channels, kinded)
	return nil
}

// refuse notes that the server refuses what it was told.
func (s *subscriber) refuse(verb string, channels []*channel, err error) {
	s.mu.Lock()
	var wakes []func(backend.Wakeup)
	for _, ch := range channels {
		switch {
		case verb == unsubscribe:
			ch.stuck = true
			wakes = append(wakes, s.stands(ch)...)
		case len(channels) > 1: // it is not said which
			ch.state, ch.alone = off, true
			s.settle(ch)
		default:
			ch.state, ch.refused = off, true
			wakes = ch.standing()
			ch.answer(err)
			s.settle(ch)
		}
	}
	s.mu.Unlock()
	wakeAll(wakes, backend.WakeAll)
}

// published wakes those who are subscribed.
func (s *subscriber) published(conn *connection, msg valkey.PubSubMessage) {
	wakeup, ok := redisson.Wakeup(msg.Message)
	if !ok {
		return
	}
	s.mu.Lock()
	var wakes []func(backend.Wakeup)
	if ch := s.channels[msg.Channel]; ch != nil && s.conn == conn {
		wakes = ch.standing()
	}
	s.mu.Unlock()
	wakeAll(wakes, wakeup)
}

// confirmed notes that the server has done what it was told, for one channel.
func (s *subscriber) confirmed(conn *connection, done valkey.PubSubSubscription) {
	s.mu.Lock()
	var wakes []func(backend.Wakeup)
	ch := s.channels[done.Channel]
	switch {
	case ch == nil || s.conn != conn:
	case done.Kind == subscribe && ch.state == asked:
		conn.served = true
		wakes = s.stands(ch)
	case done.Kind == unsubscribe && ch.state == leaving:
		ch.state = off
		s.settle(ch)
	}
	s.mu.Unlock()
	wakeAll(wakes, backend.WakeAll)
}

// withKind gives an error of the connection its kind.
func (s *subscriber) withKind(err error) error {
	return withKind(err, sync.OnceValue(func() bool { return isClosed(s.ctx, s.client) }))
}

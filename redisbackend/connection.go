package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// A connection is one to the server that is subscribed to channels.
type connection struct {
	server *server
	pubsub *redis.PubSub
	lost   chan error    // why it cannot be used any more
	read   chan struct{} // closed when receive has ended; nil until it begins

	// Guarded by the subscriber's mutex.
	served bool   // a subscription was confirmed
	heard  bool   // something was received since the last check
	ping   bool   // a ping is to be sent
	sent   *order // what the server has not wholly answered yet, or nil
}

// An order is a command to the server.
type order struct {
	verb     string
	channels []*channel // that it has not confirmed yet
}

const (
	subscribe   = "subscribe"
	unsubscribe = "unsubscribe"
	ping        = "ping"
)

const (
	maxOrder    = 1000             // channels in one command
	sendTimeout = 10 * time.Second // to connect, or to write a command
	minPause    = 20 * time.Millisecond
	maxPause    = 2 * time.Second
)

var errSilent = errors.New("redis: no answer on the connection for subscriptions")

// run makes connections to a server, one after the other.
func (s *subscriber) run(srv *server) {
	for s.needed(srv) {
		s.mu.Lock()
		client := srv.client
		s.mu.Unlock()
		conn := &connection{server: srv, pubsub: client.Subscribe(s.ctx), lost: make(chan error, 1)}
		err := s.serve(conn)
		conn.close()
		s.lost(srv, err, conn.served)
	}
}

// needed waits until a connection is needed and may be made. It returns false when the session is
// closed.
func (s *subscriber) needed(srv *server) bool {
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
		var timer <-chan time.Time
		if wanted {
			timer = time.After(pause)
		}
		select {
		case <-timer:
		case <-srv.kick:
		case <-s.ctx.Done():
		}
	}
}

// serve sends what is to be sent, until the connection is lost or the session closed.
func (s *subscriber) serve(conn *connection) error {
	check := time.NewTicker(s.checkEvery)
	defer check.Stop()
	for {
		if verb, names := s.next(conn); verb != "" {
			if err := s.send(conn, verb, names); err != nil {
				return err
			}
			if conn.read == nil {
				conn.read = make(chan struct{})
				go s.receive(conn)
			}
		}
		select {
		case <-conn.server.kick:
		case err := <-conn.lost:
			return err
		case <-check.C:
			if conn.read != nil && !s.alive(conn) {
				return errSilent
			}
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

func (c *connection) close() {
	c.pubsub.Close()
	if c.read != nil {
		<-c.read
	}
}

// next returns the next command to send, if there is one and the last is answered. It is noted as
// sent before it is, since its answer may come at any time after.
func (s *subscriber) next(conn *connection) (verb string, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn.sent != nil {
		return "", nil
	}
	if conn.ping {
		conn.ping = false
		conn.sent = &order{verb: ping}
		return ping, nil
	}
	channels := s.together(conn.server)
	if len(channels) == 0 {
		return "", nil
	}
	verb = channels[0].wants()
	for _, ch := range channels {
		names = append(names, ch.name)
		delete(conn.server.todo, ch.name)
		ch.state = asked
		if verb == unsubscribe {
			ch.state = leaving
		}
	}
	conn.sent = &order{verb, channels}
	return verb, names
}

// together picks channels that want the same. Sharded ones share no command: those of one command
// would have to be in one slot.
func (s *subscriber) together(srv *server) (channels []*channel) {
	limit := maxOrder
	if s.sharded {
		limit = 1
	}
	for _, ch := range srv.todo {
		switch {
		case len(channels) == limit:
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

// send writes a command. On a connection that stands it must not make go-redis connect again, which
// would hide the break.
func (s *subscriber) send(conn *connection, verb string, names []string) error {
	ctx, cancel := context.WithTimeout(s.ctx, sendTimeout)
	defer cancel()
	if conn.read != nil {
		cancel() // go-redis heeds a context's end where it connects, its deadline where it writes
	}
	switch {
	case verb == ping:
		return conn.pubsub.Ping(ctx)
	case verb == subscribe && s.sharded:
		return conn.pubsub.SSubscribe(ctx, names...)
	case verb == subscribe:
		return conn.pubsub.Subscribe(ctx, names...)
	case s.sharded:
		return conn.pubsub.SUnsubscribe(ctx, names...)
	default:
		return conn.pubsub.Unsubscribe(ctx, names...)
	}
}

// alive is called now and then. It returns false if the server has been silent since the last call
// though it was asked something, and sees to it that it is asked something.
func (s *subscriber) alive(conn *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn.heard {
		conn.heard = false
		return true
	}
	if conn.sent != nil {
		return false
	}
	conn.ping = true
	conn.server.wake()
	return true
}

// receive reads until the first error.
func (s *subscriber) receive(conn *connection) {
	defer close(conn.read)
	// As in send: no context that has ended lets go-redis connect again.
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	for {
		msg, err := conn.receive(ctx)
		var refusal redis.Error
		switch {
		case err == nil:
			err = s.handle(conn, msg)
		case errors.As(err, &refusal):
			err = s.refuse(conn, withKind(err))
		}
		if err != nil {
			conn.lost <- err
			return
		}
	}
}

// receive reads one message. go-redis panics on some that are malformed.
func (c *connection) receive(ctx context.Context) (msg any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redis: malformed message: %v", p)
		}
	}()
	return c.pubsub.Receive(ctx)
}

// handle does what a message asks for. It returns an error if the message makes no sense.
func (s *subscriber) handle(conn *connection, msg any) error {
	switch msg := msg.(type) {
	case *redis.Message:
		s.published(conn, msg)
		return nil
	case *redis.Subscription:
		verb := msg.Kind
		if s.sharded {
			verb = strings.TrimPrefix(verb, "s") // of ssubscribe and sunsubscribe
		}
		return s.confirmed(conn, verb, msg.Channel)
	case *redis.Pong:
		return s.confirmed(conn, ping, "")
	default:
		return fmt.Errorf("redis: unexpected message %T", msg)
	}
}

// published wakes those who are subscribed.
func (s *subscriber) published(conn *connection, msg *redis.Message) {
	wakeup, ok := redisson.Wakeup(msg.Payload)
	s.mu.Lock()
	conn.heard = true
	var wakes []func(backend.Wakeup)
	if ch := s.channels[msg.Channel]; ch != nil && ok {
		wakes = ch.standing()
	}
	s.mu.Unlock()
	wakeAll(wakes, wakeup)
}

// confirmed notes that the server has done what it was told, for one channel. It returns an error if
// the server was told something else.
func (s *subscriber) confirmed(conn *connection, verb, name string) error {
	s.mu.Lock()
	conn.heard = true
	wakes, ok := s.confirm(conn, verb, name)
	s.mu.Unlock()
	if !ok {
		return fmt.Errorf("redis: unexpected confirmation: %s %.200q", verb, name)
	}
	wakeAll(wakes, backend.WakeAll)
	return nil
}

func (s *subscriber) confirm(conn *connection, verb, name string) (wakes []func(backend.Wakeup), ok bool) {
	sent := conn.sent
	if sent == nil || sent.verb != verb || verb != ping && sent.channels[0].name != name {
		return nil, s.removed(conn, verb, name)
	}
	if verb != ping {
		ch := sent.channels[0]
		sent.channels = sent.channels[1:]
		if verb == subscribe {
			conn.served = true
			wakes = s.stands(ch)
		} else {
			ch.state = off
			s.settle(ch)
		}
	}
	if len(sent.channels) == 0 {
		conn.sent = nil
		conn.server.wake()
	}
	return wakes, true
}

// removed notes that the server has ended a subscription unasked, as it does when the channel's slot
// goes to another. It returns false if there is no such.
func (s *subscriber) removed(conn *connection, verb, name string) bool {
	ch := s.channels[name]
	if s.shards == nil || verb != unsubscribe || ch == nil || ch.server != conn.server || ch.state != on {
		return false
	}
	ch.state = off
	s.leave(ch)
	return true
}

// refuse does what is to be done when the server refuses what it was told. It returns an error if the
// connection cannot be used further.
func (s *subscriber) refuse(conn *connection, err error) error {
	s.mu.Lock()
	conn.heard = true
	sent := conn.sent
	moved := s.shards != nil && sent != nil && sent.verb == subscribe && redis.HasErrorPrefix(err, "MOVED")
	if sent == nil || !moved && backend.KindOf(err) != backend.Refused {
		s.mu.Unlock()
		return err
	}
	conn.sent = nil
	var wakes []func(backend.Wakeup)
	for _, ch := range sent.channels {
		switch {
		case moved:
			ch.state = off
			s.leave(ch)
		case sent.verb == unsubscribe:
			ch.stuck = true
			wakes = append(wakes, s.stands(ch)...)
		case len(sent.channels) > 1: // it is not said which
			ch.state, ch.alone = off, true
			s.settle(ch)
		default:
			ch.state, ch.refused = off, true
			wakes = ch.standing()
			ch.answer(err)
			s.settle(ch)
		}
	}
	conn.server.wake()
	s.mu.Unlock()
	wakeAll(wakes, backend.WakeAll)
	return nil
}

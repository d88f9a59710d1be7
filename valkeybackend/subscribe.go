package valkeybackend

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// A subscriber keeps all subscriptions of a session, on one connection. Servers of a cluster pass
// on to each other what is published, so one connection is enough there, too.
//
// One goroutine, run, owns the connection and does all that may block: it connects, and tells the
// server what to subscribe to and what not any more, one command at a time. What the server
// publishes and confirms comes from a goroutine of valkey-go.
//
// A connection is used until its first error and then replaced as a whole. valkey-go's Receive would
// reconnect by itself, on the connections that the steps use.
type subscriber struct {
	client valkey.Client

	ctx  context.Context // ends with the session
	stop context.CancelFunc
	kick chan struct{} // tells run that there is something to do

	mu       sync.Mutex // never held while anything is sent or called
	started  bool       // run
	conn     *connection
	channels map[string]*channel
	todo     map[string]*channel // those of the channels that want something of the server
	failures int                 // connections in a row that served nobody
	failed   error               // of the last of them
	pause    time.Time           // no new connection before
}

// A channel is one that somebody is subscribed to, or that the server takes for one.
type channel struct {
	name    string
	state   state
	subs    map[*subscription]struct{}
	alone   bool // must not share a command with others: the server has refused one of them
	refused bool // by the server
	stuck   bool // the server refuses to unsubscribe it
}

// state is what a channel is on the present connection.
type state uint8

const (
	off     state = iota
	asked         // the server was told to subscribe, and has not confirmed it
	on            // the server passes on what is published
	leaving       // the server was told to unsubscribe, and has not confirmed it
)

// A subscription is what a caller has of a channel.
type subscription struct {
	subscriber *subscriber
	channel    *channel
	wake       func(backend.Wakeup)
	waiting    bool       // Subscribe has no answer yet
	answer     chan error // what Subscribe returns
}

func newSubscriber(client valkey.Client) *subscriber {
	ctx, stop := context.WithCancel(context.Background())
	return &subscriber{
		client:   client,
		ctx:      ctx,
		stop:     stop,
		kick:     make(chan struct{}, 1),
		channels: make(map[string]*channel),
		todo:     make(map[string]*channel),
	}
}

// Subscribe returns once the server has confirmed the subscription.
func (s *session) Subscribe(ctx context.Context, req backend.SubscribeRequest) (backend.Subscription, error) {
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return nil, err
	}
	sub, err := s.subscriber.add(redisson.Channel(req.Name), req.Wake)
	if err != nil {
		return nil, err
	}
	select {
	case err = <-sub.answer:
	case <-ctx.Done():
		err = &backend.Error{Kind: backend.Unknown, Err: ctx.Err()}
	case <-s.subscriber.ctx.Done():
		err = errClosed
	}
	if err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// close ends everything and waits for nothing.
func (s *subscriber) close() { s.stop() }

// add returns a subscription that will be answered, or an error while no connection can be had.
func (s *subscriber) add(name string, wake func(backend.Wakeup)) (*subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 && time.Now().Before(s.pause) {
		return nil, s.failed
	}
	ch := s.channels[name]
	if ch == nil {
		ch = &channel{name: name, subs: make(map[*subscription]struct{})}
		s.channels[name] = ch
	}
	sub := &subscription{subscriber: s, channel: ch, wake: wake, waiting: true, answer: make(chan error, 1)}
	ch.subs[sub] = struct{}{}
	ch.refused = false // the server may have changed its mind
	if ch.state == on {
		sub.reply(nil)
	}
	s.settle(ch)
	if !s.started {
		s.started = true
		go s.run()
	}
	return sub, nil
}

// Close gives the subscription up.
func (sub *subscription) Close() {
	s := sub.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(sub.channel.subs, sub)
	s.settle(sub.channel)
}

// reply answers the Subscribe that waits for it.
func (sub *subscription) reply(err error) {
	sub.waiting = false
	sub.answer <- err
}

// wants returns what the channel wants the server to be told.
func (ch *channel) wants() string {
	switch {
	case ch.state == off && len(ch.subs) > 0 && !ch.refused:
		return subscribe
	case ch.state == on && len(ch.subs) == 0 && !ch.stuck:
		return unsubscribe
	default:
		return ""
	}
}

// settle is called with the mutex held after any change to a channel.
func (s *subscriber) settle(ch *channel) {
	if s.channels[ch.name] != ch {
		return // forgotten
	}
	if ch.wants() != "" {
		s.todo[ch.name] = ch
		s.wakeRun()
		return
	}
	delete(s.todo, ch.name)
	if ch.state == off && len(ch.subs) == 0 {
		delete(s.channels, ch.name)
	}
}

func (s *subscriber) wakeRun() {
	select {
	case s.kick <- struct{}{}:
	default: // it is awake
	}
}

// stands notes that the server passes on what is published on the channel. It returns how to wake
// those who were subscribed before: what was published meanwhile they have missed.
func (s *subscriber) stands(ch *channel) (wakes []func(backend.Wakeup)) {
	wakes = ch.standing()
	ch.state = on
	ch.answer(nil)
	s.settle(ch)
	return wakes
}

// answer answers all that wait. On an error they are subscribed no more.
func (ch *channel) answer(err error) {
	for sub := range ch.subs {
		if !sub.waiting {
			continue
		}
		sub.reply(err)
		if err != nil {
			delete(ch.subs, sub)
		}
	}
}

// standing returns how to wake those whose Subscribe has returned.
func (ch *channel) standing() (wakes []func(backend.Wakeup)) {
	for sub := range ch.subs {
		if !sub.waiting {
			wakes = append(wakes, sub.wake)
		}
	}
	return wakes
}

func wakeAll(wakes []func(backend.Wakeup), wakeup backend.Wakeup) {
	for _, wake := range wakes {
		wake(wakeup)
	}
}

// lost notes that a connection, and with it all the server knew, is gone. Those who are subscribed
// stay so, and will be when there is another; those who wait are told, so that they need not.
func (s *subscriber) lost(err error, conn *connection) {
	err = s.withKind(err) // may ask the server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = nil
	s.failed = err
	s.failures++
	if conn.served {
		s.failures = 0
	}
	s.pause = time.Now().Add(backoff(s.failures))
	for _, ch := range s.channels {
		ch.state, ch.alone, ch.refused, ch.stuck = off, false, false, false
		ch.answer(s.failed)
		s.settle(ch)
	}
}

// backoff is how long to wait after so many failures, jittered so that the clients of a server that
// comes back don't come all at once.
func backoff(failures int) time.Duration {
	pause := min(minPause<<min(failures, 10), maxPause)
	return pause/2 + rand.N(pause/2)
}

// Package pubsub manages a session's subscriptions to the channels of locks, for the Redis and
// Valkey backends. It subscribes to each channel on the server that serves it, replaces broken
// connections, and wakes waiters. A backend adapts its client library with a [Client] and a [Conn].
package pubsub

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A Client finds the servers of channels.
type Client interface {
	// Locate returns the server that serves a channel.
	Locate(ctx context.Context, channel string) (Server, error)

	// Reload is called when the results of Locate may be out of date. It must return without
	// waiting for a server.
	Reload(ctx context.Context)

	// Kind adds a [backend.ErrorKind] to an error of a Conn.
	Kind(err error) error
}

// A Server is a Redis or Valkey server that serves channels.
type Server struct {
	Addr string // identifies the server

	// Connect returns a connection that passes the server's messages to the receiver. It need not
	// connect at once. If connecting fails later, the first Tell returns the error.
	Connect func(*Receiver) Conn
}

// A Conn is a connection that is used only for subscriptions.
type Conn interface {
	// Tell sends one command for each order, in one round trip, and returns when the server has
	// answered them all. An order lists the channels of its command. For Ping, there is a single
	// order, without channels. The receiver gets the server's confirmation for each channel,
	// perhaps a little later.
	//
	// If the server refuses any order, refusals contains an error for each refused order and nil
	// for the others. If a channel of an order has moved to another server, the error for that
	// order wraps [ErrMoved]. If err isn't nil, the connection can no longer be used.
	Tell(ctx context.Context, verb Verb, orders [][]string) (refusals []error, err error)

	// Lost returns a channel that reports the loss of the connection. When the connection breaks,
	// the channel receives the reason, or is closed.
	Lost() <-chan error

	// Close closes the connection. It is called once.
	Close()
}

// A Verb is the name of a subscription command. For sharded channels, clients put an s in front of
// it.
type Verb string

// The subscription commands.
const (
	Subscribe   Verb = "subscribe"
	Unsubscribe Verb = "unsubscribe"
	Ping        Verb = "ping"
)

// ErrMoved means that an order was refused because one of its channels has moved to another server.
var ErrMoved = errors.New("another server has the channel")

var (
	errClosed = &backend.Error{Kind: backend.Refused, Err: errors.New("session closed")}
	errLost   = errors.New("the connection for subscriptions was lost")
	errEnded  = &backend.Error{
		Kind: backend.Retry,
		Err:  errors.New("the server has ended the subscription: another has the channel"),
	}
)

// Options configure a [Subscriber]. The zero value is for a single server, without sharded
// channels.
type Options struct {
	// Sharded selects the commands for sharded channels. Each channel gets its own command, since
	// all channels of one command would have to be in the same slot.
	Sharded bool

	// Spread reports whether channels are spread over several servers, and may move from one to
	// another.
	Spread bool

	// CheckEvery is the time between pings on a connection. Zero means no pings.
	CheckEvery time.Duration
}

// A Subscriber manages all subscriptions of a session. It uses a single connection or, with Spread,
// one for each server that serves any of the channels. Without Spread, a single connection is
// enough even in a cluster, since the servers pass messages on to each other.
//
// Each server has a goroutine that executes the method run. This goroutine owns the connection and
// makes all calls that may block: to connect, subscribe and unsubscribe. Messages and confirmations
// arrive on a goroutine of the client library.
//
// A connection is replaced after its first error, since a client library that reconnects by itself
// doesn't report the reconnection. A connection without subscriptions is closed after a while. Its
// server is then forgotten, since channels subscribed later may be at another address.
type Subscriber struct {
	client  Client
	options Options

	ctx  context.Context // ends with the session
	stop context.CancelFunc

	// mu guards the fields below. It is not held during a request or a callback.
	mu       sync.Mutex
	servers  map[string]*server
	channels map[string]*channel
	placing  bool // set while place runs

	// changes lists the changes still to be reported to subscribers, in order.
	changes []change
	telling bool // set while tellChanges runs
}

// A change records that a subscription has broken, or works again.
type change struct {
	sub    *subscription
	broken error // nil if it works again
}

// New returns a Subscriber, which starts no goroutines until it is used.
func New(client Client, options Options) *Subscriber {
	ctx, stop := context.WithCancel(context.Background())
	return &Subscriber{
		client:   client,
		options:  options,
		ctx:      ctx,
		stop:     stop,
		servers:  make(map[string]*server),
		channels: make(map[string]*channel),
	}
}

// Close ends all subscriptions. It doesn't wait.
func (s *Subscriber) Close() { s.stop() }

// A Meaning is the reason for waking the subscribers of a channel.
type Meaning uint8

// The meanings of messages.
const (
	// Freed means that a lock or permits may have become free.
	Freed Meaning = iota

	// Kept means that a lock was released but stays taken, which matters only to subscribers that
	// watch the lock.
	Kept

	// Missed means that messages may have been lost.
	Missed
)

// A Decoder returns the meaning of a message. It returns false for an unknown message, since any
// client of the server may publish on a channel.
type Decoder func(message string) (Meaning, bool)

// A channel is a pub/sub channel that has subscribers in this session, or whose messages the server
// may still send.
type channel struct {
	name    string
	decode  Decoder
	hear    func(message string) // used instead of decode; see Listen
	server  *server              // nil while its server isn't known
	state   state                // see become
	changes int                  // how many times state has changed
	// watched is the number of active watches. See Watch.
	watched int
	subs    []*subscription
	// alone is set if the server refused a command for several channels. The channel then gets its
	// own commands.
	alone   bool
	refused bool // the server refuses to subscribe it
	stuck   bool // the server refuses to unsubscribe it
}

// state is the state of a channel on the current connection.
type state uint8

const (
	off state = iota

	// asked means that the server was told to subscribe, but hasn't confirmed it yet.
	asked

	// on means that the server sends the channel's messages.
	on

	// leaving means that the server was told to unsubscribe, but hasn't confirmed it yet.
	leaving
)

// become sets the state of the channel, and counts the change.
func (ch *channel) become(st state) {
	ch.state = st
	ch.changes++
}

// A subscription is a caller's subscription to a channel.
type subscription struct {
	subscriber *Subscriber
	channel    *channel
	wake       func(Meaning)
	changed    func(broken error) // or nil
	// answer receives the result of Subscribe. It is nil after that.
	answer chan<- error
	broken bool // the subscription was confirmed, and then lost
	closed bool
}

// Subscribe returns once the server has confirmed the subscription. All subscribers of a channel
// must pass the same decoder. changed may be nil. See [backend.SubscribeRequest].
func (s *Subscriber) Subscribe(
	ctx context.Context, channel string, decode Decoder, wake func(Meaning), changed func(
		broken error,
	),
) (backend.Subscription, error) {
	return s.subscribe(ctx, channel, decode, nil, wake, changed)
}

// Listen is like Subscribe, but passes each message to the callback hear. It does so only once,
// even if the channel has several listeners, so all of them must pass the same callback. When
// messages may have been missed, the callback named again is called.
func (s *Subscriber) Listen(
	ctx context.Context, channel string, hear func(message string), again func(),
	changed func(broken error),
) (backend.Subscription, error) {
	return s.subscribe(ctx, channel, nil, hear, func(Meaning) { again() }, changed)
}

func (s *Subscriber) subscribe(
	ctx context.Context, channel string, decode Decoder, hear func(string), wake func(Meaning),
	changed func(error),
) (backend.Subscription, error) {
	located, err := s.client.Locate(ctx, channel)
	if err != nil {
		return nil, err
	}
	sub, answer, err := s.add(channel, located, decode, hear, wake, changed)
	if err != nil {
		return nil, err
	}
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = &backend.Error{Kind: backend.Unknown, Err: ctx.Err()}
	case <-s.ctx.Done():
		err = errClosed
	}
	if err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// add adds a subscription, and returns it with a Go channel for the result. During the pause after
// a connection has failed, it returns an error.
func (s *Subscriber) add(
	name string, located Server, decode Decoder, hear func(string), wake func(Meaning),
	changed func(error),
) (*subscription, <-chan error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, nil, errClosed
	}
	ch := s.channel(name)
	ch.decode, ch.hear = decode, hear
	if ch.server == nil {
		ch.server = s.server(located)
	}
	if ch.server.failures > 0 && time.Now().Before(ch.server.pause) {
		s.settle(ch)
		return nil, nil, ch.server.failed
	}
	answer := make(chan error, 1)
	sub := &subscription{subscriber: s, channel: ch, wake: wake, changed: changed, answer: answer}
	ch.subs = append(ch.subs, sub)
	ch.refused = false // the server may accept it now
	if ch.state == on {
		sub.reply(nil)
	}
	s.settle(ch)
	return sub, answer, nil
}

// channel returns the channel with the given name, and creates it if necessary. The caller must
// hold s.mu.
func (s *Subscriber) channel(name string) *channel {
	ch := s.channels[name]
	if ch == nil {
		ch = &channel{name: name}
		s.channels[name] = ch
	}
	return ch
}

// Listens reports whether a channel has a subscriber, or is about to get one.
func (s *Subscriber) Listens(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.channels[name]
	return ch != nil && len(ch.subs) > 0
}

// Watch begins to watch whether this session listens to a channel. The caller must call the
// returned function, which ends the watch. It returns the minimum and the maximum number of this
// session's connections in any count of the channel's listeners that the server made during the
// watch.
//
// These numbers can be off by one for a while, when only one side has noticed that a connection
// broke, or that a slot of the cluster moved.
func (s *Subscriber) Watch(name string) func() (least, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.channel(name)
	ch.watched++
	changes := ch.changes
	return func() (least, most int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		ch.watched--
		s.settle(ch) // it may have no subscribers
		switch {
		case ch.changes != changes, s.ctx.Err() != nil:
			return 0, 1
		case ch.state == off:
			return 0, 0
		case ch.state == on:
			return 1, 1
		default:
			return 0, 1
		}
	}
}

// Close ends the subscription.
func (sub *subscription) Close() {
	s := sub.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	sub.closed = true
	sub.channel.subs = slices.DeleteFunc(sub.channel.subs, func(other *subscription) bool {
		return other == sub
	})
	s.settle(sub.channel)
}

// reply sends the result to the waiting call to Subscribe.
func (sub *subscription) reply(err error) {
	sub.answer <- err
	sub.answer = nil
}

// wants returns the command that the channel needs next, or "".
func (ch *channel) wants() Verb {
	switch {
	case ch.state == off && len(ch.subs) > 0 && !ch.refused:
		return Subscribe
	case ch.state == on && len(ch.subs) == 0 && !ch.stuck:
		return Unsubscribe
	default:
		return ""
	}
}

// settle schedules the channel's next command, if it needs one, and drops a channel that nobody
// uses. It must be called after every change to a channel. The caller must hold s.mu.
func (s *Subscriber) settle(ch *channel) {
	if s.channels[ch.name] != ch {
		return // the channel was dropped
	}
	switch {
	case ch.wants() == "":
		if ch.server != nil {
			delete(ch.server.todo, ch.name)
		}
		if ch.state == off && len(ch.subs) == 0 && ch.watched == 0 {
			delete(s.channels, ch.name)
		}
	case ch.server == nil:
		if !s.placing {
			s.placing = true
			go s.place()
		}
	default:
		ch.server.todo[ch.name] = ch
		ch.server.wake()
	}
}

// stands records that the subscription to a channel is now active on the server. It returns the
// wake functions of the subscribers that were subscribed before, since they may have missed
// messages.
func (s *Subscriber) stands(ch *channel) (wakes []func(Meaning)) {
	wakes = ch.standing()
	s.report(ch, nil)
	ch.become(on)
	ch.answer(nil)
	s.settle(ch)
	return wakes
}

// report records that a channel's subscriptions have broken or, if broken is nil, work again. It
// skips subscribers that already know. The caller must hold s.mu, and must call tellChanges after
// unlocking it.
func (s *Subscriber) report(ch *channel, broken error) {
	for _, sub := range ch.subs {
		if sub.answer == nil && sub.changed != nil && sub.broken != (broken != nil) {
			sub.broken = !sub.broken
			s.changes = append(s.changes, change{sub, broken})
		}
	}
}

// tellChanges notifies subscribers of the changes recorded by report. If another goroutine is
// already doing that, tellChanges returns at once. So each subscriber gets its changes in order.
func (s *Subscriber) tellChanges() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.telling {
		return
	}
	s.telling = true
	for len(s.changes) > 0 {
		c := s.changes[0]
		s.changes = s.changes[1:]
		if c.sub.closed || s.ctx.Err() != nil {
			continue
		}
		s.mu.Unlock()
		c.sub.changed(c.broken)
		s.mu.Lock()
	}
	s.telling = false
}

// answer sends the result to all waiting calls to Subscribe. If it is an error, their subscriptions
// end.
func (ch *channel) answer(err error) {
	ch.subs = slices.DeleteFunc(ch.subs, func(sub *subscription) bool {
		if sub.answer == nil {
			return false
		}
		sub.reply(err)
		return err != nil
	})
}

// standing returns the wake functions of the subscribers whose calls to Subscribe have already
// returned.
func (ch *channel) standing() (wakes []func(Meaning)) {
	for _, sub := range ch.subs {
		if sub.answer == nil {
			wakes = append(wakes, sub.wake)
		}
	}
	return wakes
}

func wakeAll(wakes []func(Meaning), why Meaning) {
	for _, wake := range wakes {
		wake(why)
	}
}

// leave forgets a channel's server if channels may move to other servers. The channel's state must
// be off, and the caller must hold s.mu.
func (s *Subscriber) leave(ch *channel) {
	if s.options.Spread {
		delete(ch.server.todo, ch.name)
		ch.server = nil
	}
	s.settle(ch)
}

// place finds a server for each channel that has none. It retries until every channel has one. If
// the client's view of the cluster is out of date, place may find the wrong server. That server
// refuses the channel, and place runs again.
func (s *Subscriber) place() {
	for tries := 0; ; tries++ {
		select {
		case <-time.After(backoff(tries)):
		case <-s.ctx.Done():
			return
		}
		s.mu.Lock()
		channels := s.homeless()
		s.placing = len(channels) > 0
		s.mu.Unlock()
		if len(channels) == 0 {
			return
		}
		s.client.Reload(s.ctx)
		for _, ch := range channels {
			located, err := s.client.Locate(s.ctx, ch.name)
			if err != nil {
				continue
			}
			s.mu.Lock()
			if ch.server == nil && s.ctx.Err() == nil {
				ch.server = s.server(located)
				s.settle(ch)
			}
			s.mu.Unlock()
		}
	}
}

// homeless returns the channels that need a server and have none. The caller must hold s.mu.
func (s *Subscriber) homeless() (channels []*channel) {
	for _, ch := range s.channels {
		if ch.server == nil && ch.wants() != "" {
			channels = append(channels, ch)
		}
	}
	return channels
}

const (
	minPause = 20 * time.Millisecond
	maxPause = 2 * time.Second
)

// backoff returns the pause after a number of failures. It is partly random, so that the clients of
// a restarted server don't all reconnect at the same time.
func backoff(failures int) time.Duration {
	pause := min(minPause<<min(failures, 10), maxPause)
	return pause/2 + rand.N(pause/2)
}

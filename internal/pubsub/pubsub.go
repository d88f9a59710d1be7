// Package pubsub keeps a session's subscriptions to the channels of locks, for the backends on Redis
// and Valkey. It knows who listens to what, tells the servers, replaces connections that break, and
// wakes those who wait. A backend adapts its client with a [Client] and a [Conn].
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

// A Client finds the servers that channels are subscribed at.
type Client interface {
	// Locate returns the server that has a channel.
	Locate(ctx context.Context, channel string) (Server, error)

	// Reload is called when what Locate knows may be out of date. It doesn't wait for a server.
	Reload(ctx context.Context)

	// Kind gives an error of a Conn its kind.
	Kind(err error) error
}

// A Server is what a channel is subscribed at.
type Server struct {
	Addr string // tells it from others

	// Connect returns a connection that passes on to the receiver what the server says. It may
	// connect later; if that fails, the first Tell says why.
	Connect func(*Receiver) Conn
}

// A Conn is a connection to a server that carries nothing but subscriptions.
type Conn interface {
	// Tell sends a command for each of the orders, which are the channels that it is about, all in
	// one go, and returns when the server has answered them. That the server does as it was told is
	// confirmed to the receiver, channel by channel, perhaps a little later. If it refuses any,
	// refusals has its reply to each order, nil where it doesn't; if another server has the channel,
	// the reply wraps [ErrMoved]. After err the connection is of no use any more. Ping is one order
	// without channels.
	Tell(ctx context.Context, verb Verb, orders [][]string) (refusals []error, err error)

	// Lost returns a channel that gets the reason when the connection breaks, or is closed then.
	Lost() <-chan error

	// Close ends the connection. It is called once.
	Close()
}

// A Verb is a command about subscriptions. Clients that use sharded channels put an s before it.
type Verb string

// The commands.
const (
	Subscribe   Verb = "subscribe"
	Unsubscribe Verb = "unsubscribe"
	Ping        Verb = "ping"
)

// ErrMoved is wrapped in the refusal of a server where another has the channel.
var ErrMoved = errors.New("another server has the channel")

var (
	errClosed = &backend.Error{Kind: backend.Refused, Err: errors.New("session closed")}
	errLost   = errors.New("the connection for subscriptions was lost")
	errEnded  = &backend.Error{Kind: backend.Retry, Err: errors.New("the server has ended the subscription: another has the channel")}
)

// Options say how to subscribe. The zero value is for one server and the plain commands.
type Options struct {
	// Sharded says that the commands for sharded channels are used. Each channel has its own: those
	// of one command would have to be in one slot.
	Sharded bool

	// Spread says that each channel is at a server of its own, and may move to another.
	Spread bool

	// CheckEvery is how often a connection is sent a ping. Zero is never.
	CheckEvery time.Duration
}

// A Subscriber keeps all subscriptions of a session: on one connection, or, if they are spread over a
// cluster, on one to each server that has a channel. Otherwise the servers of a cluster pass on to
// each other what is published, so that one connection is enough there, too.
//
// One goroutine per server, run, owns the connection and does all that may block: it connects, and
// tells the server what to subscribe to and what not any more. What the server publishes and confirms
// comes from a goroutine of the client's.
//
// A connection is used until its first error and then replaced as a whole: clients that reconnect by
// themselves don't tell since when. One that nobody needs any more is closed after a while, and its
// server forgotten: the next may have another address.
type Subscriber struct {
	client  Client
	options Options

	ctx  context.Context // ends with the session
	stop context.CancelFunc

	mu       sync.Mutex // never held while anything is sent, read or called
	servers  map[string]*server
	channels map[string]*channel
	placing  bool // place runs

	changes []change // that are to be told, in their order
	telling bool     // somebody does
}

// A change of a subscription is that it breaks, or stands again.
type change struct {
	sub    *subscription
	broken error // nil: it stands
}

// New returns a subscriber that starts nothing before it is used.
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

// Close ends everything and waits for nothing.
func (s *Subscriber) Close() { s.stop() }

// Meaning is why those who are subscribed to a channel are woken.
type Meaning uint8

// The meanings.
const (
	Freed  Meaning = iota // something may be had
	Kept                  // it is kept, which is news only for those who watch
	Missed                // something may have been said that nobody heard
)

// A Decoder says what a message means, and is false for one that means nothing: anybody may publish on
// a channel.
type Decoder func(message string) (Meaning, bool)

// A channel is one that somebody is subscribed to, or that the server takes for one.
type channel struct {
	name    string
	decode  Decoder
	hear    func(message string) // instead of decode; see Listen
	server  *server              // nil while it isn't known which has it
	state   state                // see become
	changes int                  // of state
	watched int                  // how many look at it: see Watch
	subs    []*subscription
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

// become notes a new state.
func (ch *channel) become(st state) {
	ch.state = st
	ch.changes++
}

// A subscription is what a caller has of a channel.
type subscription struct {
	subscriber *Subscriber
	channel    *channel
	wake       func(Meaning)
	changed    func(broken error) // or nil
	answer     chan<- error       // what Subscribe returns; nil once it has it
	broken     bool               // it was subscribed, and isn't now
	closed     bool
}

// Subscribe returns once the server has confirmed the subscription. All who subscribe to a channel decode
// its messages in the same way. Changed may be nil: see [backend.SubscribeRequest].
func (s *Subscriber) Subscribe(ctx context.Context, channel string, decode Decoder, wake func(Meaning), changed func(broken error)) (backend.Subscription, error) {
	return s.subscribe(ctx, channel, decode, nil, wake, changed)
}

// Listen is Subscribe for a channel whose messages are more than wake-ups. All who listen to one have them heard in the same way, by
// a function that is called once for each message. Again is called where others are woken without a message: some may have been missed.
func (s *Subscriber) Listen(ctx context.Context, channel string, hear func(message string), again func(), changed func(broken error)) (backend.Subscription, error) {
	return s.subscribe(ctx, channel, nil, hear, func(Meaning) { again() }, changed)
}

func (s *Subscriber) subscribe(ctx context.Context, channel string, decode Decoder, hear func(string), wake func(Meaning), changed func(error)) (backend.Subscription, error) {
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

// add returns a subscription and its answer to come, or an error while no connection can be had.
func (s *Subscriber) add(name string, located Server, decode Decoder, hear func(string), wake func(Meaning), changed func(error)) (*subscription, <-chan error, error) {
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
	ch.refused = false // the server may have changed its mind
	if ch.state == on {
		sub.reply(nil)
	}
	s.settle(ch)
	return sub, answer, nil
}

// channel returns the channel of this name. The mutex is held.
func (s *Subscriber) channel(name string) *channel {
	ch := s.channels[name]
	if ch == nil {
		ch = &channel{name: name}
		s.channels[name] = ch
	}
	return ch
}

// Listens says whether anybody is subscribed to a channel, or about to be.
func (s *Subscriber) Listens(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.channels[name]
	return ch != nil && len(ch.subs) > 0
}

// Watch begins to observe whether the session itself listens to a channel. The function it returns,
// which must be called, ends that and says how many connections of the session a server can have
// counted among those who listen, meanwhile: at least, and at most.
//
// For as long as one side doesn't know yet that a connection broke, or that a slot of the cluster moved,
// a server may count one more or less.
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
		s.settle(ch) // nobody else may need it
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

// Close gives the subscription up.
func (sub *subscription) Close() {
	s := sub.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	sub.closed = true
	sub.channel.subs = slices.DeleteFunc(sub.channel.subs, func(other *subscription) bool { return other == sub })
	s.settle(sub.channel)
}

// reply answers the Subscribe that waits for it.
func (sub *subscription) reply(err error) {
	sub.answer <- err
	sub.answer = nil
}

// wants returns what the channel wants the server to be told.
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

// settle is called with the mutex held after any change to a channel.
func (s *Subscriber) settle(ch *channel) {
	if s.channels[ch.name] != ch {
		return // forgotten
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

// stands notes that the server passes on what is published on the channel. It returns how to wake
// those who were subscribed before: what was published meanwhile they have missed.
func (s *Subscriber) stands(ch *channel) (wakes []func(Meaning)) {
	wakes = ch.standing()
	s.report(ch, nil)
	ch.become(on)
	ch.answer(nil)
	s.settle(ch)
	return wakes
}

// report has those who are subscribed to a channel told that their subscriptions are broken, or, with nil, that they stand again, unless they
// know. The mutex is held; who gives it back calls tellChanges.
func (s *Subscriber) report(ch *channel, broken error) {
	for _, sub := range ch.subs {
		if sub.answer == nil && sub.changed != nil && sub.broken != (broken != nil) {
			sub.broken = !sub.broken
			s.changes = append(s.changes, change{sub, broken})
		}
	}
}

// tellChanges tells what was reported, unless somebody else does: one at a time, so that who is told that a subscription stands
// knows already that it was broken.
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

// answer answers all that wait. On an error they are subscribed no more.
func (ch *channel) answer(err error) {
	ch.subs = slices.DeleteFunc(ch.subs, func(sub *subscription) bool {
		if sub.answer == nil {
			return false
		}
		sub.reply(err)
		return err != nil
	})
}

// standing returns how to wake those whose Subscribe has returned.
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

// leave notes that a channel, which is off, may be another server's now. The mutex is held.
func (s *Subscriber) leave(ch *channel) {
	if s.options.Spread {
		delete(ch.server.todo, ch.name)
		ch.server = nil
	}
	s.settle(ch)
}

// place looks for the servers of the channels that have none, until each has one. What the client
// knows of the cluster may be out of date: then the server says so, and the channel comes back.
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

// homeless returns the channels that want a server and have none. The mutex is held.
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

// backoff is how long to wait after so many failures, jittered so that the clients of a server that
// comes back don't come all at once.
func backoff(failures int) time.Duration {
	pause := min(minPause<<min(failures, 10), maxPause)
	return pause/2 + rand.N(pause/2)
}

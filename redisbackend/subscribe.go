package redisbackend

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// A subscriber keeps all subscriptions of a session: on one connection, or, if they are sharded, on
// one to each master of the cluster that has a channel. Otherwise the servers of a cluster pass on
// to each other what is published, so that one connection is enough there, too.
//
// Two goroutines share the work on a connection. One, run, owns it and does all that may block: it
// connects, and tells the server what to subscribe to and what not any more, one command at a time,
// the next when the last is answered. So it is always clear which command a reply belongs to, also
// where an error reply names no channel. The other, receive, reads.
//
// A connection is used until its first error and then replaced as a whole: go-redis would reconnect
// by itself, but not tell what it has subscribed to again, nor since when.
type subscriber struct {
	client     redis.UniversalClient
	cluster    *redis.ClusterClient // the client, if it is one; else nil
	shards     *redis.ClusterClient // the same if each channel has a master of its own; else nil
	sharded    bool                 // the commands for sharded channels are used
	checkEvery time.Duration

	ctx  context.Context // ends with the session
	stop context.CancelFunc

	mu       sync.Mutex // never held while anything is sent, read or called
	servers  map[string]*server
	channels map[string]*channel
	placing  bool // place runs
}

// A server is where channels are subscribed: over one connection at a time.
type server struct {
	kick chan struct{} // tells run that there is something to do

	// Guarded by the subscriber's mutex.
	client   redis.UniversalClient
	todo     map[string]*channel // those of its channels that want something of it
	failures int                 // connections in a row that served nobody
	failed   error               // of the last of them
	pause    time.Time           // no new connection before
}

// A channel is one that somebody is subscribed to, or that the server takes for one.
type channel struct {
	name    string
	server  *server // nil while it isn't known which has it
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

func newSubscriber(b *Backend) *subscriber {
	ctx, stop := context.WithCancel(context.Background())
	s := &subscriber{
		client:     b.client,
		sharded:    b.options.sharded,
		checkEvery: b.options.checkEvery,
		ctx:        ctx,
		stop:       stop,
		servers:    make(map[string]*server),
		channels:   make(map[string]*channel),
	}
	s.cluster, _ = b.client.(*redis.ClusterClient)
	if s.sharded {
		s.shards = s.cluster
	}
	return s
}

// Subscribe returns once the server has confirmed the subscription.
func (s *session) Subscribe(ctx context.Context, req backend.SubscribeRequest) (backend.Subscription, error) {
	if err := s.check(ctx, req.Kind, req.Name); err != nil {
		return nil, err
	}
	if err := s.probe(ctx, req.Name); err != nil {
		return nil, err
	}
	channel := redisson.Channel(req.Name)
	client, err := s.subscriber.locate(ctx, channel)
	if err != nil {
		return nil, err
	}
	sub, err := s.subscriber.add(channel, client, req.Wake)
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

// locate returns the client of the server that has a channel.
func (s *subscriber) locate(ctx context.Context, channel string) (redis.UniversalClient, error) {
	if s.shards == nil {
		return s.client, nil
	}
	return master(ctx, s.shards, channel)
}

// server returns the server that a client is connected to. The mutex is held.
func (s *subscriber) server(client redis.UniversalClient) *server {
	var addr string
	if s.shards != nil {
		addr = client.(*redis.Client).Options().Addr
	}
	srv := s.servers[addr]
	if srv == nil {
		srv = &server{kick: make(chan struct{}, 1), todo: make(map[string]*channel)}
		s.servers[addr] = srv
		go s.run(srv)
	}
	srv.client = client // a ClusterClient closes those it has no more use for, and makes new ones
	return srv
}

// add returns a subscription that will be answered, or an error while no connection can be had.
func (s *subscriber) add(name string, client redis.UniversalClient, wake func(backend.Wakeup)) (*subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, errClosed
	}
	ch := s.channels[name]
	if ch == nil {
		ch = &channel{name: name, subs: make(map[*subscription]struct{})}
		s.channels[name] = ch
	}
	if ch.server == nil {
		ch.server = s.server(client)
	}
	if ch.server.failures > 0 && time.Now().Before(ch.server.pause) {
		s.settle(ch)
		return nil, ch.server.failed
	}
	sub := &subscription{subscriber: s, channel: ch, wake: wake, waiting: true, answer: make(chan error, 1)}
	ch.subs[sub] = struct{}{}
	ch.refused = false // the server may have changed its mind
	if ch.state == on {
		sub.reply(nil)
	}
	s.settle(ch)
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
	switch {
	case ch.wants() == "":
		if ch.server != nil {
			delete(ch.server.todo, ch.name)
		}
		if ch.state == off && len(ch.subs) == 0 {
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

// wake tells run that there is something to do.
func (srv *server) wake() {
	select {
	case srv.kick <- struct{}{}:
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
func (s *subscriber) lost(srv *server, err error, served bool) {
	if s.cluster != nil && s.ctx.Err() == nil {
		s.cluster.ReloadState(s.ctx) // the server may be gone for good
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	srv.failed = withKind(err)
	srv.failures++
	if served {
		srv.failures = 0
	}
	srv.pause = time.Now().Add(backoff(srv.failures))
	for _, ch := range s.channels {
		if ch.server != srv {
			continue
		}
		ch.state, ch.alone, ch.refused, ch.stuck = off, false, false, false
		ch.answer(srv.failed)
		s.leave(ch)
	}
}

// leave notes that a channel, which is off, may be another server's now. The mutex is held.
func (s *subscriber) leave(ch *channel) {
	if s.shards != nil {
		delete(ch.server.todo, ch.name)
		ch.server = nil
	}
	s.settle(ch)
}

// place looks for the servers of the channels that have none, until each has one. What the client
// knows of the cluster may be out of date: then the server says so, and the channel comes back.
func (s *subscriber) place() {
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
		s.shards.ReloadState(s.ctx)
		for _, ch := range channels {
			client, err := s.locate(s.ctx, ch.name)
			if err != nil {
				continue
			}
			s.mu.Lock()
			if ch.server == nil && s.ctx.Err() == nil {
				ch.server = s.server(client)
				s.settle(ch)
			}
			s.mu.Unlock()
		}
	}
}

// homeless returns the channels that want a server and have none. The mutex is held.
func (s *subscriber) homeless() (channels []*channel) {
	for _, ch := range s.channels {
		if ch.server == nil && ch.wants() != "" {
			channels = append(channels, ch)
		}
	}
	return channels
}

// backoff is how long to wait after so many failures, jittered so that the clients of a server that
// comes back don't come all at once.
func backoff(failures int) time.Duration {
	pause := min(minPause<<min(failures, 10), maxPause)
	return pause/2 + rand.N(pause/2)
}

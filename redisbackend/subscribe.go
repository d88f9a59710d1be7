package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/pubsub"
)

func newSubscriber(b *Backend) *pubsub.Subscriber {
	l := &listening{client: b.client, options: b.options}
	l.cluster, _ = b.client.(*redis.ClusterClient)
	return pubsub.New(l, pubsub.Options{
		Sharded:    b.options.sharded,
		Spread:     l.spread(),
		CheckEvery: b.options.checkEvery,
	})
}

// listening is how a go-redis client subscribes.
type listening struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // the client, if it is one; else nil
	options options
}

// spread says whether each channel has a master of its own.
func (l *listening) spread() bool { return l.options.sharded && l.cluster != nil }

// Locate returns the server that has a channel.
func (l *listening) Locate(ctx context.Context, channel string) (pubsub.Server, error) {
	if !l.spread() {
		return l.server(l.client, ""), nil
	}
	node, err := master(ctx, l.cluster, channel)
	if err != nil {
		return pubsub.Server{}, err
	}
	return l.server(node, node.Options().Addr), nil
}

func (l *listening) server(client redis.UniversalClient, addr string) pubsub.Server {
	return pubsub.Server{Addr: addr, Connect: func(r *pubsub.Receiver) pubsub.Conn {
		return &connection{
			options:  l.options,
			receiver: r,
			pubsub:   client.Subscribe(context.Background()), // sends nothing yet
			lost:     make(chan error, 1),
		}
	}}
}

// Reload has a ClusterClient ask again which server has what. It doesn't wait for the answer.
func (l *listening) Reload(ctx context.Context) {
	if l.cluster != nil {
		l.cluster.ReloadState(ctx)
	}
}

// Kind gives an error of a connection its kind.
func (l *listening) Kind(err error) error { return withKind(err) }

// A connection is one to the server that carries subscriptions. Its commands don't wait for their
// answers, which come in their order among what is published: receive, a goroutine, reads all that.
type connection struct {
	options  options
	receiver *pubsub.Receiver
	pubsub   *redis.PubSub
	lost     chan error    // why it cannot be used any more
	read     chan struct{} // closed when receive has ended; nil until it begins

	mu   sync.Mutex
	sent []*order // what the server has not wholly answered yet, the oldest first
}

// An order is a command to the server.
type order struct {
	verb     pubsub.Verb
	channels []string   // that it has not confirmed yet
	answered chan error // gets nil, or the server's refusal
}

const sendTimeout = 10 * time.Second // to connect, or to write a command

var errSilent = errors.New("redis: no answer on the connection for subscriptions")

func (c *connection) Lost() <-chan error { return c.lost }

func (c *connection) Close() {
	c.pubsub.Close()
	if c.read != nil {
		<-c.read
	}
}

// Tell sends commands and waits for their answers, but for none longer than a connection may be silent.
func (c *connection) Tell(ctx context.Context, verb pubsub.Verb, orders [][]string) (refusals []error, err error) {
	told := make([]*order, len(orders))
	for i, channels := range orders {
		told[i] = &order{verb, channels, make(chan error, 1)}
		c.mu.Lock()
		c.sent = append(c.sent, told[i])
		c.mu.Unlock()
		if err := c.send(ctx, verb, channels); err != nil {
			return nil, err
		}
		if c.read == nil {
			c.read = make(chan struct{})
			go c.receive(ctx)
		}
	}
	refusals = make([]error, len(orders))
	for i, o := range told {
		select {
		case refusals[i] = <-o.answered:
		case err := <-c.lost:
			return nil, err
		case <-time.After(c.options.checkEvery):
			return nil, errSilent
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return refusals, nil
}

// send writes a command. On a connection that stands it must not make go-redis connect again, which
// would hide the break.
func (c *connection) send(ctx context.Context, verb pubsub.Verb, channels []string) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if c.read != nil {
		cancel() // go-redis heeds a context's end where it connects, its deadline where it writes
	}
	switch {
	case verb == pubsub.Ping:
		return c.pubsub.Ping(ctx)
	case verb == pubsub.Subscribe && c.options.sharded:
		return c.pubsub.SSubscribe(ctx, channels...)
	case verb == pubsub.Subscribe:
		return c.pubsub.Subscribe(ctx, channels...)
	case c.options.sharded:
		return c.pubsub.SUnsubscribe(ctx, channels...)
	default:
		return c.pubsub.Unsubscribe(ctx, channels...)
	}
}

// receive reads until the first error.
func (c *connection) receive(ctx context.Context) {
	defer close(c.read)
	// As in send: no context that has ended lets go-redis connect again.
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	for {
		msg, err := c.next(ctx)
		var refusal redis.Error
		switch {
		case err == nil:
			err = c.handle(msg)
		case errors.As(err, &refusal) && c.answer(withMoved(err)):
			err = nil
		}
		if err != nil {
			c.lost <- err
			return
		}
	}
}

// next reads one message. go-redis panics on some that are malformed.
func (c *connection) next(ctx context.Context) (msg any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redis: malformed message: %v", p)
		}
	}()
	return c.pubsub.Receive(ctx)
}

// withMoved marks an error reply that says that another server has the channel.
func withMoved(err error) error {
	if redis.HasErrorPrefix(err, "MOVED") {
		return fmt.Errorf("%w: %w", pubsub.ErrMoved, err)
	}
	return err
}

// handle does what a message asks for. It returns an error if the message makes no sense.
func (c *connection) handle(msg any) error {
	switch msg := msg.(type) {
	case *redis.Message:
		c.receiver.Published(msg.Channel, msg.Payload)
		return nil
	case *redis.Subscription:
		verb := msg.Kind
		if c.options.sharded {
			verb = strings.TrimPrefix(verb, "s") // of ssubscribe and sunsubscribe
		}
		return c.confirmed(pubsub.Verb(verb), msg.Channel)
	case *redis.Pong:
		return c.confirmed(pubsub.Ping, "")
	default:
		return fmt.Errorf("redis: unexpected message %T", msg)
	}
}

// confirmed passes on that the server has done what it was told, for one channel. It returns an error
// if the server was told something else.
func (c *connection) confirmed(verb pubsub.Verb, channel string) error {
	told, done := c.told(verb, channel)
	switch {
	case verb == pubsub.Ping && told:
	case verb == pubsub.Subscribe && told:
		c.receiver.Subscribed(channel)
	case verb == pubsub.Unsubscribe && (told || c.options.sharded): // unasked if the slot has moved
		c.receiver.Unsubscribed(channel)
	default:
		return fmt.Errorf("redis: unexpected confirmation: %s %.200q", verb, channel)
	}
	if done {
		c.answer(nil)
	}
	return nil
}

// told says whether the server was told this, and whether nothing of the command is left to confirm.
// It confirms in the order in which it was told.
func (c *connection) told(verb pubsub.Verb, channel string) (told, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) == 0 {
		return false, false
	}
	o := c.sent[0]
	if o.verb != verb || verb != pubsub.Ping && o.channels[0] != channel {
		return false, false
	}
	if verb != pubsub.Ping {
		o.channels = o.channels[1:]
	}
	return true, len(o.channels) == 0
}

// answer ends the oldest order, if there is one.
func (c *connection) answer(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) == 0 {
		return false
	}
	c.sent[0].answered <- err
	c.sent = c.sent[1:]
	return true
}

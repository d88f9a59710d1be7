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

// listening subscribes with a go-redis client. It implements [pubsub.Client].
type listening struct {
	client redis.UniversalClient
	// cluster is the same client if it is a ClusterClient, or else nil.
	cluster *redis.ClusterClient
	options options
}

// spread reports whether channels are spread over the masters of a cluster.
func (l *listening) spread() bool { return l.options.sharded && l.cluster != nil }

// Locate returns the server that serves a channel.
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

// Reload makes a ClusterClient reload its map of slots, and doesn't wait for the result.
func (l *listening) Reload(ctx context.Context) {
	if l.cluster != nil {
		l.cluster.ReloadState(ctx)
	}
}

// Kind classifies an error of a connection.
func (l *listening) Kind(err error) error { return withKind(err) }

// A connection carries subscriptions. Commands are sent without waiting for their answers. The
// answers come in the order of the commands, mixed with the published messages. The method receive
// reads all of them in its own goroutine.
type connection struct {
	options  options
	receiver *pubsub.Receiver
	pubsub   *redis.PubSub
	lost     chan error // receives the error that ends the connection
	// read is closed when receive has ended. It is nil until receive begins.
	read chan struct{}

	mu sync.Mutex
	// sent lists the orders that haven't been answered completely, oldest first.
	sent []*order
}

// An order is a command that was sent to the server.
type order struct {
	verb pubsub.Verb
	// channels lists the channels that the server hasn't confirmed yet.
	channels []string
	answered chan error // receives nil, or the server's refusal
}

// sendTimeout is the maximum time to connect, or to write a command.
const sendTimeout = 10 * time.Second

var errSilent = errors.New("redis: no answer on the connection for subscriptions")

func (c *connection) Lost() <-chan error { return c.lost }

func (c *connection) Close() {
	c.pubsub.Close()
	if c.read != nil {
		<-c.read
	}
}

// Tell sends commands, and waits for their answers. It gives up if an answer takes longer than
// options.checkEvery.
func (c *connection) Tell(
	ctx context.Context, verb pubsub.Verb, orders [][]string,
) (refusals []error, err error) {
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

// send writes a command. Only the first command is allowed to make go-redis connect. If go-redis
// reconnected later, nobody would notice that the connection had broken.
func (c *connection) send(ctx context.Context, verb pubsub.Verb, channels []string) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if c.read != nil {
		cancel() // a context that is done keeps go-redis from connecting, but not from writing
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

// receive reads messages until the first error, which it sends to c.lost.
func (c *connection) receive(ctx context.Context) {
	defer close(c.read)
	// As in send, a context that is done keeps go-redis from reconnecting.
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

// next reads one message. It returns an error for malformed messages that make go-redis panic.
func (c *connection) next(ctx context.Context) (msg any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redis: malformed message: %v", p)
		}
	}()
	return c.pubsub.Receive(ctx)
}

// withMoved marks an error reply that redirects the client to another server.
func withMoved(err error) error {
	if redis.HasErrorPrefix(err, "MOVED") {
		return fmt.Errorf("%w: %w", pubsub.ErrMoved, err)
	}
	return err
}

// handle passes a message to the receiver. It returns an error if the message is unexpected.
func (c *connection) handle(msg any) error {
	switch msg := msg.(type) {
	case *redis.Message:
		c.receiver.Published(msg.Channel, msg.Payload)
		return nil
	case *redis.Subscription:
		verb := msg.Kind
		if c.options.sharded {
			verb = strings.TrimPrefix(verb, "s") // the prefix of ssubscribe and sunsubscribe
		}
		return c.confirmed(pubsub.Verb(verb), msg.Channel)
	case *redis.Pong:
		return c.confirmed(pubsub.Ping, "")
	default:
		return fmt.Errorf("redis: unexpected message %T", msg)
	}
}

// confirmed passes a server's confirmation for one channel to the receiver. It returns an error if
// the server wasn't asked for it.
func (c *connection) confirmed(verb pubsub.Verb, channel string) error {
	told, done := c.told(verb, channel)
	switch {
	case verb == pubsub.Ping && told:
	case verb == pubsub.Subscribe && told:
		c.receiver.Subscribed(channel)
	case verb == pubsub.Unsubscribe && (told || c.options.sharded): // or the slot has moved
		c.receiver.Unsubscribed(channel)
	default:
		return fmt.Errorf("redis: unexpected confirmation: %s %.200q", verb, channel)
	}
	if done {
		c.answer(nil)
	}
	return nil
}

// told reports whether the oldest order expects this confirmation, and whether the order is then
// complete. The server confirms the channels of an order in sequence.
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

// answer completes the oldest order. It returns false if there is none.
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

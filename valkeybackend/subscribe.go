package valkeybackend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// listening subscribes with a valkey-go client. It implements [pubsub.Client]. It uses dedicated
// clients, because the client's own Receive method reconnects by itself, and shares its connections
// with the steps.
type listening struct {
	client  valkey.Client
	sharded bool
	slots   *slots // nil unless channels are spread over several nodes
}

func newSubscriber(client valkey.Client, sharded bool, slots *slots) *pubsub.Subscriber {
	l := &listening{client: client, sharded: sharded}
	if sharded {
		l.slots = slots
	}
	return pubsub.New(l, pubsub.Options{Sharded: sharded, Spread: l.slots != nil})
}

// Locate returns the server that serves a channel.
func (l *listening) Locate(ctx context.Context, channel string) (pubsub.Server, error) {
	if l.slots == nil {
		return pubsub.Server{Connect: func(r *pubsub.Receiver) pubsub.Conn {
			return l.connect(l.client, r)
		}}, nil
	}
	addr, node, err := l.slots.locate(ctx, redisson.Slot(channel))
	if err != nil {
		return pubsub.Server{}, err
	}
	// A dedicated client of the cluster would serve only one slot. A dedicated client of a node
	// serves all slots of that node.
	return pubsub.Server{Addr: addr, Connect: func(r *pubsub.Receiver) pubsub.Conn {
		return l.connect(node, r)
	}}, nil
}

// Reload makes the next Locate ask the cluster again.
func (l *listening) Reload(context.Context) {
	if l.slots != nil {
		l.slots.forget()
	}
}

// Kind wraps an error of a connection in an error of the matching kind. To find the kind, it may
// send a command to the server.
func (l *listening) Kind(err error) error {
	if reply, ok := errors.AsType[*valkey.ValkeyError](err); ok {
		return redisson.ServerError(replyText(reply), err)
	}
	if errors.Is(err, valkey.ErrClosing) && isClosed(l.client) {
		return &backend.Error{Kind: backend.Refused, Err: err}
	}
	return &backend.Error{Kind: clientError(err), Err: err}
}

// isClosed reports whether a client was closed. To find out, it sends a command, since valkey-go
// also returns ErrClosing if it has closed only one connection, for example to a former master.
func isClosed(client valkey.Client) bool {
	err := client.Do(context.Background(), client.B().Arbitrary("PING").Build()).NonValkeyError()
	return errors.Is(err, valkey.ErrClosing)
}

// A connection is a dedicated client that is used only for subscriptions.
type connection struct {
	client  valkey.DedicatedClient
	sharded bool
	lost    <-chan error
}

// connect returns a connection for subscriptions that uses the given client.
func (l *listening) connect(client valkey.Client, r *pubsub.Receiver) pubsub.Conn {
	c := &connection{sharded: l.sharded}
	// The function that Dedicate returns isn't needed, since Close ends the connection.
	c.client, _ = client.Dedicate()
	c.lost = c.client.SetPubSubHooks(valkey.PubSubHooks{
		OnMessage: func(msg valkey.PubSubMessage) { r.Published(msg.Channel, msg.Message) },
		OnSubscription: func(done valkey.PubSubSubscription) {
			switch done.Kind {
			case "subscribe", "ssubscribe":
				r.Subscribed(done.Channel)
			case "unsubscribe", "sunsubscribe":
				r.Unsubscribed(done.Channel)
			}
		},
	})
	return c
}

func (c *connection) Lost() <-chan error { return c.lost }
func (c *connection) Close()             { c.client.Close() }

// replyTimeout is the time limit for a call of Tell. Within this time, Tell must connect and get
// the answers to all its commands.
const replyTimeout = 10 * time.Second

// Tell sends commands, and waits for their answers. An answer only means that the server accepts
// the command. The server confirms each channel later.
func (c *connection) Tell(
	ctx context.Context, verb pubsub.Verb, orders [][]string,
) (refusals []error, err error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	cmds := make([]valkey.Completed, len(orders))
	for i, channels := range orders {
		cmds[i] = c.command(verb, channels)
	}
	refusals = make([]error, len(orders))
	for i, result := range c.client.DoMulti(ctx, cmds...) {
		if err := result.NonValkeyError(); err != nil {
			return nil, err
		}
		if reply, ok := valkey.IsValkeyErr(result.Error()); ok {
			refusals[i] = withMoved(reply)
		}
	}
	return refusals, nil
}

// withMoved returns an error reply as it is or, if the reply redirects the client to another
// server, an error that wraps both pubsub.ErrMoved and the reply.
func withMoved(reply *valkey.ValkeyError) error {
	if _, moved := reply.IsMoved(); moved {
		return fmt.Errorf("%w: %w", pubsub.ErrMoved, reply)
	}
	return reply
}

func (c *connection) command(verb pubsub.Verb, channels []string) valkey.Completed {
	b := c.client.B()
	switch {
	case verb == pubsub.Subscribe && c.sharded:
		return b.Ssubscribe().Channel(channels...).Build()
	case verb == pubsub.Subscribe:
		return b.Subscribe().Channel(channels...).Build()
	case c.sharded:
		return b.Sunsubscribe().Channel(channels...).Build()
	default:
		return b.Unsubscribe().Channel(channels...).Build()
	}
}

package pubsub

import (
	"context"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A single is the client of one server, which confirms everything at once.
type single struct{ receiver *Receiver }

func (c *single) Locate(context.Context, string) (Server, error) {
	return Server{Connect: func(r *Receiver) Conn {
		c.receiver = r
		return conn{c, make(chan error)}
	}}, nil
}

func (*single) Reload(context.Context) {}
func (*single) Kind(err error) error   { return err }

type conn struct {
	*single
	lost chan error
}

func (c conn) Tell(_ context.Context, verb Verb, channels []string) (refusal, err error) {
	for _, name := range channels {
		switch verb {
		case Subscribe:
			c.receiver.Subscribed(name)
		case Unsubscribe:
			c.receiver.Unsubscribed(name)
		}
	}
	return nil, nil
}

func (c conn) Lost() <-chan error { return c.lost }
func (conn) Close()               {}

// What the server says on a connection that is being closed wakes nobody any more.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := new(single)
		s := New(client, Options{})
		woken := 0
		sub, err := s.Subscribe(t.Context(), "channel", func(backend.Wakeup) { woken++ })
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Close()
		client.receiver.Published("channel", "0")
		if woken != 1 {
			t.Fatalf("woken %d times by a message", woken)
		}
		s.Close()
		client.receiver.Published("channel", "0")
		if woken != 1 {
			t.Errorf("woken after Close")
		}
	})
}

package valkeybackend

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// notice looks for signs that the client has no connection, or is closed. An error of a dialer that was
// known before the command was sent is such a sign: an open client dials each time and has a new one.
func (t *transport) notice(ctx context.Context, known *net.OpError, answers []answer) {
	for _, a := range answers {
		switch {
		case a.noDial != nil:
			t.noDial.Store(a.noDial)
			if a.noDial == known {
				t.stale.Store(true)
			}
		case !a.read && ctx.Err() == nil && backend.KindOf(a.Err) == backend.Unknown:
			t.unanswered.Store(true)
		}
	}
}

// Reach returns an error if a step about a key need not be sent. When a command was answered by nobody,
// a PING goes ahead of the next step: while that isn't answered either, the step would not be. And
// while valkey-go can't tell of a command whether it was sent before it failed, say because the client
// was closed, there is no doubt about a step that isn't.
func (t *transport) Reach(ctx context.Context, key string) error {
	if t.stale.Load() {
		if err := t.closed(ctx, key); err != nil {
			return err
		}
	}
	if !t.unanswered.Load() {
		return nil
	}
	a := t.send(ctx, t.ping(key))[0]
	if a.read {
		t.unanswered.Store(false)
		return nil
	}
	return &backend.Error{Kind: unsent(a.Err), Err: errors.Unwrap(a.Err)}
}

// closed returns an error if the client was closed after it could not connect, which it doesn't say: it
// answers with the dialer's last error, and then connects again. Only its pool stays closed, so
// that it has the same error for whoever wants a connection for himself.
func (t *transport) closed(ctx context.Context, key string) error {
	known := t.noDial.Load()
	a := t.sendOver(ctx, t.client, []valkey.Completed{t.ping(key)})[0]
	if a.noDial == known {
		return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("%w: %w", valkey.ErrClosing, known)}
	}
	t.stale.Store(false)
	return nil
}

// ping asks the node that has a key: the channel is in the same slot.
func (t *transport) ping(key string) valkey.Completed {
	return t.command(redisson.Command{Verb: "PING", Keys: []string{redisson.Channel(key)}})
}

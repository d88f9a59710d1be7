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

// notice looks at answers for signs that the client has no connection, or was closed, and records
// what it finds. The parameter known is the dial error of an earlier command, or nil. If a command
// gets the same error again, the client may be closed: an open client would have dialed again, and
// got a new error.
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

// Reach returns an error if a step on a key must not be sent. After a command without an answer,
// Reach sends a PING before the next step. If the PING gets no answer, the step wouldn't get one
// either, so Reach prevents it. valkey-go often can't tell whether a failed command was sent, for
// example if the client was closed. A step that Reach prevents was certainly not sent.
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

// closed returns an error if the client was closed after it had failed to connect. valkey-go
// doesn't report that such a client is closed. The client's next command gets the old dial error
// once more, and later commands even connect again. But the client's pool stays closed, and returns
// the old dial error whenever a dedicated connection is requested.
func (t *transport) closed(ctx context.Context, key string) error {
	known := t.noDial.Load()
	a := t.sendOver(ctx, t.client, []valkey.Completed{t.ping(key)})[0]
	if a.noDial == known {
		return &backend.Error{
			Kind: backend.Refused, Err: fmt.Errorf("%w: %w", valkey.ErrClosing, known),
		}
	}
	t.stale.Store(false)
	return nil
}

// ping returns a PING for the node of a key. It is routed by the lock's channel, which is in the
// same slot.
func (t *transport) ping(key string) valkey.Completed {
	return t.command(redisson.Command{Verb: "PING", Keys: []string{redisson.Channel(key)}})
}

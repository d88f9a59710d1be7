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
func (s *session) notice(ctx context.Context, known *net.OpError, answers []answer) {
	for _, a := range answers {
		switch {
		case a.noDial != nil:
			s.noDial.Store(a.noDial)
			if a.noDial == known {
				s.stale.Store(true)
			}
		case !a.read && ctx.Err() == nil && backend.KindOf(a.err) == backend.Unknown:
			s.unanswered.Store(true)
		}
	}
}

// reach returns an error if a step about a name need not be sent. When a command was answered by nobody,
// a PING goes ahead of the next step: while that isn't answered either, the step would not be. And
// while valkey-go can't tell of a command whether it was sent before it failed, say because the client
// was closed, there is no doubt about a step that isn't.
func (s *session) reach(ctx context.Context, name string) error {
	if s.stale.Load() {
		if err := s.closed(ctx, name); err != nil {
			return err
		}
	}
	if !s.unanswered.Load() {
		return nil
	}
	a := s.send(ctx, s.ping(name))[0]
	if a.read {
		s.unanswered.Store(false)
		return nil
	}
	return &backend.Error{Kind: unsent(a.err), Err: errors.Unwrap(a.err)}
}

// closed returns an error if the client was closed after it could not connect, which it doesn't say: it
// answers with the dialer's last error, and then connects again. Only its pool stays closed, so
// that it has the same error for whoever wants a connection for himself.
func (s *session) closed(ctx context.Context, name string) error {
	known := s.noDial.Load()
	a := s.sendOver(ctx, s.client, []valkey.Completed{s.ping(name)})[0]
	if a.noDial == known {
		return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("%w: %w", valkey.ErrClosing, known)}
	}
	s.stale.Store(false)
	return nil
}

// ping asks the node that has a name: the channel is in the same slot.
func (s *session) ping(name string) valkey.Completed {
	return s.question("PING", redisson.Channel(name))
}

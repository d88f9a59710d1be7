package redisson

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
)

// A latch is stored like Redisson's RCountDownLatch: a string with the count, under the latch's
// name, without an expiry. An open latch has no key. The scripts are ours, but they leave the same
// data behind and publish the same messages. docs/redisson-commands.md lists Redisson's commands
// and ours.

//go:embed latchset.lua
var latchSetText string

//go:embed latchdown.lua
var latchDownText string

var (
	latchSetScript, shardedLatchSetScript   = newScript(latchSetText), sharded(latchSetText)
	latchDownScript, shardedLatchDownScript = newScript(latchDownText), sharded(latchDownText)
)

// These messages are published on a latch's channel.
const (
	latchOpenMessage = "0"
	// latchSetMessage means that the count was set. Redisson also sends it when it deletes a latch,
	// which opens the latch.
	latchSetMessage = "1"
)

// LatchChannel returns the channel of a latch. It puts every name in braces, as Redisson does, even
// a name that contains braces. Such a name can't be used in a cluster (see checkSlots).
func LatchChannel(name string) string { return "redisson_countdownlatch__channel__{" + name + "}" }

// Latch implements [backend.Latcher].
func (s *session) Latch(
	ctx context.Context, req backend.LatchRequest,
) (backend.LatchResult, error) {
	name := s.Prefix + req.Name
	if err := s.mayLatch(ctx, name); err != nil {
		return backend.LatchResult{}, err
	}
	channel := LatchChannel(name)
	var r Reply
	switch req.Step {
	case backend.SetLatch:
		r = s.run(ctx, call(s.Dialect.script(latchSetScript, shardedLatchSetScript), 2,
			name, channel, strconv.FormatInt(req.Count, 10), latchSetMessage))
	case backend.CountDown:
		r = s.run(ctx, call(s.Dialect.script(latchDownScript, shardedLatchDownScript), 2,
			name, channel, latchOpenMessage))
	default:
		r = s.Transport.Send(ctx, ask("GET", name))
		if r.Err == nil {
			r.Value = []any{int64(0), r.Value}
		}
	}
	if strings.Contains(r.Refusal, "not an integer") { // from DECR, which changed nothing
		return backend.LatchResult{}, errForeign
	}
	return parse(r, parseLatch)
}

// mayLatch returns an error if a step on a latch can't be carried out because of the latch's name,
// the context or the server.
func (s *session) mayLatch(ctx context.Context, name string) error {
	if s.Cluster {
		if err := checkSlots(name, LatchChannel(name)); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return &backend.Error{Kind: backend.Retry, Err: err}
	}
	if err := s.Transport.Reach(ctx, name); err != nil {
		return err
	}
	return s.probe(ctx)
}

// parseLatch parses the reply to a step on a latch, which says whether the step set the count, and
// what the count is now.
func parseLatch(reply any) (res backend.LatchResult, err error) {
	words, _ := reply.([]any)
	if len(words) != 2 {
		return res, &backend.Error{
			Kind: backend.Unknown, Err: fmt.Errorf("an unexpected answer: %v", reply),
		}
	}
	res.Set = words[0] == int64(1)
	switch count := words[1].(type) {
	case nil:
	case int64:
		res.Count = count
	case string:
		if res.Count, err = strconv.ParseInt(count, 10, 64); err != nil {
			return backend.LatchResult{}, errForeign
		}
	}
	res.Count = max(res.Count, 0)
	return res, nil
}

// subscribeLatch implements Subscribe for latches.
func (s *session) subscribeLatch(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	if err := s.mayLatch(ctx, req.Name); err != nil {
		return nil, err
	}
	opens := func(message string) (pubsub.Meaning, bool) {
		return pubsub.Freed, message == latchOpenMessage || message == latchSetMessage
	}
	return s.Subscriber.Subscribe(ctx, LatchChannel(req.Name), opens, woken(req), req.Changed)
}

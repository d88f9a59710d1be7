package valkeybackend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/gather"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// transport sends commands with a valkey-go client.
type transport struct {
	client valkey.Client
	slots  *slots // nil without a cluster
	// noDial is the dialer's last error.
	noDial atomic.Pointer[net.OpError]
	// stale is set if a later command failed with the very same dial error. Reach uses it.
	stale atomic.Bool
	// unanswered is set if a command got no answer. Reach uses it.
	unanswered atomic.Bool
	// sender lets steps share round trips. If it is nil, each step has its own.
	sender *gather.Sender[valkey.Completed, answer]
}

// command builds a command with Arbitrary. valkey-go sends such a command once, to the master of
// its key. If the master answers that the key has moved, valkey-go sends the command to the new
// master. A read-only command that is built in another way might be repeated, or sent to a replica.
func (t *transport) command(cmd redisson.Command) valkey.Completed {
	if cmd.Script == "" {
		return t.client.B().Arbitrary(cmd.Verb).Keys(cmd.Keys...).Args(cmd.Args...).Build()
	}
	return t.client.B().Arbitrary(cmd.Verb, cmd.Script, strconv.Itoa(len(cmd.Keys))).
		Keys(cmd.Keys...).Args(cmd.Args...).Build()
}

func (t *transport) commands(cmds []redisson.Command) []valkey.Completed {
	all := make([]valkey.Completed, len(cmds))
	for i, cmd := range cmds {
		all[i] = t.command(cmd)
	}
	return all
}

// An answer is the reply to a command, or the error if there is none.
type answer struct {
	redisson.Reply
	read bool // the answer is from the server
	// noDial is the dialer's error if there was no connection.
	noDial *net.OpError
}

func replies(answers []answer) []redisson.Reply {
	all := make([]redisson.Reply, len(answers))
	for i, a := range answers {
		all[i] = a.Reply
	}
	return all
}

func (t *transport) Send(ctx context.Context, cmd redisson.Command) redisson.Reply {
	return t.send(ctx, t.command(cmd))[0].Reply
}

func (t *transport) SendTogether(ctx context.Context, cmds ...redisson.Command) []redisson.Reply {
	return replies(t.send(ctx, t.commands(cmds)...))
}

func (t *transport) SendBatch(ctx context.Context, cmds []redisson.Command) []redisson.Reply {
	return replies(t.sendNow(ctx, t.commands(cmds)))
}

// SendApart returns when all commands are answered, or when the connection breaks. If the slot has
// moved, SendApart sends all commands again, to the new node, but only once. It doesn't leave that
// to the client, because the client would redirect each command by the command's own slot, and some
// commands have no slot.
func (t *transport) SendApart(ctx context.Context, cmds ...redisson.Command) []redisson.Reply {
	all := t.commands(cmds)
	for i := range all {
		all[i] = all[i].Pin() // SendApart may send it twice
	}
	known := t.noDial.Load()
	answers := t.sendOver(ctx, t.client, all)
	if node := t.moved(answers[0]); node != nil {
		answers = t.sendOver(ctx, node, all)
	}
	t.notice(ctx, known, answers)
	return replies(answers)
}

// Node returns the address of the node that serves a key. If the node isn't known, it returns the
// key's slot. If the slot has moved, valkey-go follows the redirection.
func (t *transport) Node(_ context.Context, key string) (string, error) {
	return t.slots.near(redisson.Slot(key)), nil
}

func (t *transport) Masters(ctx context.Context) ([]string, error) { return t.slots.masters(ctx) }

func (t *transport) SendTo(
	ctx context.Context, master string, cmd redisson.Command,
) redisson.Reply {
	node := t.client.Nodes()[master]
	if node == nil {
		t.slots.forget()
		return redisson.Reply{Err: &backend.Error{
			Kind: backend.Retry, Err: fmt.Errorf("valkey: the node %s is no longer known", master),
		}}
	}
	var a answer
	for range dials {
		shared, done := share(ctx)
		a = answers(ctx, node.Do(shared, t.command(cmd)))[0]
		done()
		if ctx.Err() != nil || a.read || !errors.Is(a.Err, context.Canceled) {
			// Otherwise the dial failed because the context of another caller has ended. Then the
			// loop sends the command again, which does no harm, since the command only reads.
			break
		}
	}
	return a.Reply
}

// dials is the maximum number of times that a command is tried. A command is tried again if it
// waited for another caller to dial, and that caller's context ended.
const dials = 3

// Refresh updates the map of slots, if it is old.
func (t *transport) Refresh(ctx context.Context) { t.slots.refresh(ctx) }

// send sends commands together and returns the answer to each. In a cluster they should all be for
// the same node.
func (t *transport) send(ctx context.Context, cmds ...valkey.Completed) []answer {
	if t.sender == nil {
		return t.sendNow(ctx, cmds)
	}
	answers, err := t.sender.Send(ctx, cmds...)
	if err != nil { // ctx ended before the answers
		return slices.Repeat([]answer{{Reply: redisson.Reply{Err: err}}}, len(cmds))
	}
	return answers
}

// sendNow sends commands in this goroutine.
//
// If another caller is already dialing, valkey-go waits for that attempt, and returns its error.
// The attempt may fail just because the other caller's context has ended. Then nothing was sent,
// and sendNow tries again. It tries only a few times, because every attempt would fail in this way
// if the dialer used a context of its own that has ended.
func (t *transport) sendNow(ctx context.Context, cmds []valkey.Completed) (answers []answer) {
	for range dials {
		known := t.noDial.Load()
		answers = t.sendOnce(ctx, cmds)
		t.notice(ctx, known, answers)
		if ctx.Err() != nil ||
			slices.ContainsFunc(answers, func(a answer) bool { return !a.left() }) {
			break
		}
	}
	return answers
}

func (t *transport) sendOnce(ctx context.Context, cmds []valkey.Completed) []answer {
	shared, done := share(ctx)
	defer done()
	if len(cmds) == 1 {
		return answers(ctx, t.client.Do(shared, cmds[0]))
	}
	return answers(ctx, t.client.DoMulti(shared, cmds...)...)
}

// left reports whether there was no connection because a caller's context was canceled during the
// dial.
func (a answer) left() bool { return a.noDial != nil && errors.Is(a.noDial, context.Canceled) }

// sendOver sends commands on a dedicated connection.
func (t *transport) sendOver(
	ctx context.Context, client valkey.Client, cmds []valkey.Completed,
) []answer {
	// If the context could end, the client might then send more commands, to clean up.
	ctx = context.WithoutCancel(ctx)
	conn, release := client.Dedicate()
	defer release()
	return answers(ctx, conn.DoMulti(ctx, cmds...)...)
}

// moved returns the node to which an answer redirects the command. It returns nil if the answer
// isn't a redirection, or if the client doesn't know that node yet. After a redirection, the client
// asks the cluster for its nodes.
func (t *transport) moved(a answer) valkey.Client {
	reply, ok := errors.AsType[*valkey.ValkeyError](a.Err)
	if !ok || !a.read {
		return nil
	}
	addr, ok := reply.IsMoved()
	if !ok {
		return nil
	}
	return t.client.Nodes()[addr]
}

// answers converts results to answers.
func answers(ctx context.Context, results ...valkey.ValkeyResult) []answer {
	all := make([]answer, len(results))
	for i, result := range results {
		if err := result.NonValkeyError(); err != nil {
			all[i] = unanswered(ctx, err)
		} else {
			all[i] = answered(result)
		}
	}
	return all
}

// answered returns the answer that contains a result from the server.
func answered(result valkey.ValkeyResult) answer {
	reply, err := result.ToAny()
	if err == nil || valkey.IsValkeyNil(err) {
		return answer{Reply: redisson.Reply{Value: reply}, read: true}
	}
	if refusal, ok := valkey.IsValkeyErr(err); ok {
		return answer{
			Reply: redisson.Reply{Err: replyError(refusal), Refusal: replyText(refusal)},
			read:  true,
		}
	}
	return answer{Reply: redisson.Reply{Err: asUnknown(err)}, read: true}
}

// unanswered returns the answer for a command without a reply. The error may come from one of the
// program's functions that dial or supply credentials. Such a function might itself query a Valkey
// server. So even if err wraps valkey-go's error for a null or an error reply, it isn't the reply
// to the command.
func unanswered(ctx context.Context, err error) answer {
	kind, noDial := clientError(err), dialError(err)
	if ended := ctx.Err(); ended != nil && errors.Is(err, context.Canceled) {
		err = ended // see share
	}
	return answer{Reply: redisson.Reply{Err: &backend.Error{Kind: kind, Err: err}}, noDial: noDial}
}

// share returns a context for a command on a shared connection, and a function to call when the
// context is no longer needed. The context has no deadline but is canceled at the deadline of ctx.
// If the context had a deadline, valkey-go would set the same deadline on the connection, and close
// the connection when the deadline passes. Then other callers' commands on that connection would
// fail. A cancellation is also better than a deadline if the context is used for dialing. Other
// callers might be waiting for the same connection, and can tell from a cancellation that the
// dialer itself didn't time out.
func share(ctx context.Context) (shared context.Context, done func()) {
	if _, ok := ctx.Deadline(); !ok {
		return ctx, func() {}
	}
	shared, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return shared, func() { stop(); cancel() }
}

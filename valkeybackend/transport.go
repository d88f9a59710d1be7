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

// transport is a valkey-go client that carries commands.
type transport struct {
	client     valkey.Client
	slots      *slots                                   // of the cluster, if it is one; else nil
	noDial     atomic.Pointer[net.OpError]              // the last error of a dialer
	stale      atomic.Bool                              // it came again
	unanswered atomic.Bool                              // a command was; see Reach
	sender     *gather.Sender[valkey.Completed, answer] // nil: every step sends for itself
}

// command builds a command, as an arbitrary one. valkey-go repeats by itself what its builder knows to
// read only, and may ask a replica; of an arbitrary command it knows nothing, so that it is sent
// once, to the master of its key. Where that answers that the key has moved, the client follows.
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

// An answer is what a command was answered.
type answer struct {
	redisson.Reply
	read   bool         // the server has said it
	noDial *net.OpError // why there was no connection to send anything over
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

// SendApart ends when all is answered or the connection broken. A slot that has moved is followed, once, for
// all commands: by itself the client would follow for each alone, and some have no slot.
func (t *transport) SendApart(ctx context.Context, cmds ...redisson.Command) []redisson.Reply {
	all := t.commands(cmds)
	for i := range all {
		all[i] = all[i].Pin() // it may be sent twice
	}
	known := t.noDial.Load()
	answers := t.sendOver(ctx, t.client, all)
	if node := t.moved(answers[0]); node != nil {
		answers = t.sendOver(ctx, node, all)
	}
	t.notice(ctx, known, answers)
	return replies(answers)
}

// Node returns what tells the node that has a key from others; as long as that isn't known, the slot. If a
// slot has moved the client still follows.
func (t *transport) Node(_ context.Context, key string) (string, error) {
	return t.slots.near(redisson.Slot(key)), nil
}

func (t *transport) Masters(ctx context.Context) ([]string, error) { return t.slots.masters(ctx) }

func (t *transport) SendTo(ctx context.Context, master string, cmd redisson.Command) redisson.Reply {
	node := t.client.Nodes()[master]
	if node == nil {
		t.slots.forget()
		return redisson.Reply{Err: &backend.Error{Kind: backend.Retry, Err: fmt.Errorf("valkey: no node %s is known any more", master)}}
	}
	var a answer
	for range dials {
		shared, done := share(ctx)
		a = answers(ctx, node.Do(shared, t.command(cmd)))[0]
		done()
		if ctx.Err() != nil || a.read || !errors.Is(a.Err, context.Canceled) {
			break // else it is another's context: what is sent here only reads, and can be sent again
		}
	}
	return a.Reply
}

// dials is how often a command is sent for which there was no connection, since another caller, who
// was making it, has left.
const dials = 3

// Refresh asks which node has which slot, if that is long ago.
func (t *transport) Refresh(ctx context.Context) { t.slots.refresh(ctx) }

// send sends commands together and returns the answer to each. In a cluster they should be for one
// node.
func (t *transport) send(ctx context.Context, cmds ...valkey.Completed) []answer {
	if t.sender == nil {
		return t.sendNow(ctx, cmds)
	}
	answers, err := t.sender.Send(ctx, cmds...)
	if err != nil { // the caller has left
		return slices.Repeat([]answer{{Reply: redisson.Reply{Err: err}}}, len(cmds))
	}
	return answers
}

// sendNow is send in this goroutine.
//
// Whoever needs a connection that another caller is making waits for that attempt, and shares its
// error even if that is only that the other's context has ended while it dialed. Then nothing was sent,
// and we try again: a few times, since a dialer may have a context of its own that has ended.
func (t *transport) sendNow(ctx context.Context, cmds []valkey.Completed) (answers []answer) {
	for range dials {
		known := t.noDial.Load()
		answers = t.sendOnce(ctx, cmds)
		t.notice(ctx, known, answers)
		if ctx.Err() != nil || slices.ContainsFunc(answers, func(a answer) bool { return !a.left() }) {
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

// left says whether there was no connection because somebody who made one has left.
func (a answer) left() bool { return a.noDial != nil && errors.Is(a.noDial, context.Canceled) }

// sendOver sends commands over a connection that carries nothing else meanwhile.
func (t *transport) sendOver(ctx context.Context, client valkey.Client, cmds []valkey.Completed) []answer {
	ctx = context.WithoutCancel(ctx) // else the client cleans up the connection with more commands
	conn, release := client.Dedicate()
	defer release()
	return answers(ctx, conn.DoMulti(ctx, cmds...)...)
}

// moved returns the node that has the key of a command, if another answered that, and the client
// knows it already: it asks for the nodes when it hears of such an answer.
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

// answers reads results.
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

// answered is the answer of a result that the server has sent.
func answered(result valkey.ValkeyResult) answer {
	reply, err := result.ToAny()
	if err == nil || valkey.IsValkeyNil(err) {
		return answer{Reply: redisson.Reply{Value: reply}, read: true}
	}
	if refusal, ok := valkey.IsValkeyErr(err); ok {
		return answer{Reply: redisson.Reply{Err: replyError(refusal), Refusal: replyText(refusal)}, read: true}
	}
	return answer{Reply: redisson.Reply{Err: asUnknown(err)}, read: true}
}

// unanswered is the answer where there was no reply. The error may be anybody's, a dialer's or that of a
// source of credentials, who may have asked a Valkey of their own: one of valkey-go's for a null or
// for an error reply says nothing of our command.
func unanswered(ctx context.Context, err error) answer {
	kind, noDial := clientError(err), dialError(err)
	if ended := ctx.Err(); ended != nil && errors.Is(err, context.Canceled) {
		err = ended // see share
	}
	return answer{Reply: redisson.Reply{Err: &backend.Error{Kind: kind, Err: err}}, noDial: noDial}
}

// share returns a context for a connection that others use, too, and what to call when it is not needed
// any more. It has no deadline: valkey-go would wait on the connection itself until then and close
// it, and with it fail what others have sent there. And it is canceled when the deadline passes, so
// that whoever waits for a connection that is made under it can tell that from one that can't be had
// in time.
func share(ctx context.Context) (shared context.Context, done func()) {
	if _, ok := ctx.Deadline(); !ok {
		return ctx, func() {}
	}
	shared, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	return shared, func() { stop(); cancel() }
}

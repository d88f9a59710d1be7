package valkeybackend

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// All commands are built as arbitrary ones. valkey-go repeats by itself what its builder knows to
// read only, and may ask a replica; of an arbitrary command it knows nothing, so that it is sent
// once, to the master of its key. Where that answers that the key has moved, the client follows.

// evalSHA runs a script that the server knows already.
func (s *session) evalSHA(call redisson.Call) valkey.Completed {
	return s.script("EVALSHA", call.Script.SHA1, call)
}

// eval runs a script and makes it known to the server.
func (s *session) eval(call redisson.Call) valkey.Completed {
	return s.script("EVAL", call.Script.Text, call)
}

func (s *session) script(verb, script string, call redisson.Call) valkey.Completed {
	return s.client.B().Arbitrary(verb, script, strconv.Itoa(len(call.Keys))).
		Keys(call.Keys...).Args(call.Args...).Build()
}

// question returns a plain command about a key.
func (s *session) question(verb, key string, args ...string) valkey.Completed {
	return s.client.B().Arbitrary(verb).Keys(key).Args(args...).Build()
}

// An answer is what a command was answered: a reply, nil for a null one, or an error with its kind.
type answer struct {
	reply  any
	err    error
	read   bool         // the server has said it
	again  bool         // the server did not know the script, and did nothing
	noDial *net.OpError // why there was no connection to send anything over
}

// parse returns what a parser makes of an answer.
func parse[T any](a answer, parser func(any) (T, error)) (T, error) {
	if a.err != nil {
		var zero T
		return zero, a.err
	}
	return parser(a.reply)
}

// run carries out one script: one round trip, but for the first time that a server sees it.
func (s *session) run(ctx context.Context, call redisson.Call) answer {
	a := s.send(ctx, s.evalSHA(call))[0]
	if a.again {
		a = s.send(ctx, s.eval(call))[0]
	}
	return a
}

// send sends commands together and returns the answer to each. In a cluster they should be for one
// node.
func (s *session) send(ctx context.Context, cmds ...valkey.Completed) []answer {
	if s.sender == nil {
		return s.sendNow(ctx, cmds)
	}
	answers, err := s.sender.Send(ctx, cmds...)
	if err != nil { // the caller has left
		return slices.Repeat([]answer{{err: err}}, len(cmds))
	}
	return answers
}

// sendNow is send in this goroutine.
//
// Whoever needs a connection that another caller is making waits for that attempt, and shares its
// error even if that is only that the other's context has ended while it dialed. Then nothing was sent,
// and we try again: a few times, since a dialer may have a context of its own that has ended.
func (s *session) sendNow(ctx context.Context, cmds []valkey.Completed) (answers []answer) {
	for range 3 {
		known := s.noDial.Load()
		answers = s.sendOnce(ctx, cmds)
		s.notice(ctx, known, answers)
		if ctx.Err() != nil || slices.ContainsFunc(answers, func(a answer) bool { return !a.left() }) {
			break
		}
	}
	return answers
}

func (s *session) sendOnce(ctx context.Context, cmds []valkey.Completed) []answer {
	shared, done := share(ctx)
	defer done()
	if len(cmds) == 1 {
		return answers(ctx, s.client.Do(shared, cmds[0]))
	}
	return answers(ctx, s.client.DoMulti(shared, cmds...)...)
}

// left says whether there was no connection because somebody who made one has left.
func (a answer) left() bool { return a.noDial != nil && errors.Is(a.noDial, context.Canceled) }

// sendApart is send over a connection that carries nothing else meanwhile, and ends when all is
// answered or the connection broken. A slot that has moved is followed, once, for all commands: by
// itself the client would follow for each alone, and some have no slot.
func (s *session) sendApart(ctx context.Context, cmds ...valkey.Completed) []answer {
	for i := range cmds {
		cmds[i] = cmds[i].Pin() // it may be sent twice
	}
	known := s.noDial.Load()
	answers := s.sendOver(ctx, s.client, cmds)
	if node := s.moved(answers[0]); node != nil {
		answers = s.sendOver(ctx, node, cmds)
	}
	s.notice(ctx, known, answers)
	return answers
}

func (s *session) sendOver(ctx context.Context, client valkey.Client, cmds []valkey.Completed) []answer {
	ctx = context.WithoutCancel(ctx) // else the client cleans up the connection with more commands
	conn, release := client.Dedicate()
	defer release()
	return answers(ctx, conn.DoMulti(ctx, cmds...)...)
}

// moved returns the node that has the key of a command, if another answered that, and the client
// knows it already: it asks for the nodes when it hears of such an answer.
func (s *session) moved(a answer) valkey.Client {
	reply, ok := errors.AsType[*valkey.ValkeyError](a.err)
	if !ok || !a.read {
		return nil
	}
	addr, ok := reply.IsMoved()
	if !ok {
		return nil
	}
	return s.client.Nodes()[addr]
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
		return answer{reply: reply, read: true}
	}
	if refusal, ok := valkey.IsValkeyErr(err); ok {
		return answer{err: replyError(refusal), read: true, again: refusal.IsNoScript()}
	}
	return answer{err: asUnknown(err), read: true}
}

// unanswered is the answer where there was no reply. The error may be anybody's, a dialer's or that of a
// source of credentials, who may have asked a Valkey of their own: one of valkey-go's for a null or
// for an error reply says nothing of our command.
func unanswered(ctx context.Context, err error) answer {
	kind, noDial := clientError(err), dialError(err)
	if ended := ctx.Err(); ended != nil && errors.Is(err, context.Canceled) {
		err = ended // see share
	}
	return answer{err: &backend.Error{Kind: kind, Err: err}, noDial: noDial}
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

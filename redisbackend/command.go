package redisbackend

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/redisson"
)

// A command is one that go-redis must not repeat by itself: one whose reply was lost may have been
// carried out, and acquiring and releasing count.
//
// What go-redis says of a command doesn't tell what became of it. It returns redis.Nil also where
// somebody else was answered with a null: a dialer, a source of credentials, a Sentinel. An error
// reply may be that to the greeting of a connection, or that of a server that sent us on to another.
// So a command notices by itself when it is written, and when a reply to it is read.
type command struct {
	*redis.Cmd
	master  bool         // only a master may be asked
	asks    bool         // it changes nothing: whether it was sent makes no difference
	last    lastArgument // of a command that doesn't only ask
	replies int32        // how many of its writes were answered
	refused bool         // the last answer was an error
}

// A lastArgument is the last that go-redis writes of a command, and counts how often it does. Of a
// command of which it isn't written no server has got the whole.
type lastArgument struct {
	text   string
	writes atomic.Int32 // or recalled
	shown  atomic.Bool  // somebody has its text, and might send that
}

const recalled = -1

var errRecalled = errors.New("redis: whoever wanted this sent has left")

// MarshalBinary is called by go-redis when it writes the command.
func (a *lastArgument) MarshalBinary() ([]byte, error) {
	for {
		n := a.writes.Load()
		if n == recalled {
			return nil, errRecalled
		}
		if a.writes.CompareAndSwap(n, n+1) {
			return []byte(a.text), nil
		}
	}
}

// String is what hooks see that log commands.
func (a *lastArgument) String() string {
	a.shown.Store(true)
	return a.text
}

// recall keeps commands that go together from being written. It returns false if that is too late. The
// first of them decides: without it none is.
func recall(cmds []*command) bool {
	first := cmds[0]
	return !first.asks && !first.last.shown.Load() && first.last.writes.CompareAndSwap(0, recalled)
}

// noReply is the value of a command until a reply is read.
type noReply struct{}

func (noReply) String() string { return "no reply" }

// SetErr is called by go-redis with the error of a reply that it has read, and with errors of its own.
// After an error the client may go on to another server: what was read so far is no reply of that.
func (c *command) SetErr(err error) {
	c.Cmd.SetErr(err)
	if !c.read() {
		return
	}
	good := err == nil || err == redis.Nil
	if good || isReply(err) {
		c.replies, c.refused = c.last.writes.Load(), !good
	}
	if !good {
		c.SetVal(noReply{})
	}
}

// read says whether a reply was read, or begun to be.
func (c *command) read() bool {
	_, not := c.Val().(noReply)
	return !not
}

// unsettled says whether the command was written and that was not answered.
func (c *command) unsettled() bool { return c.last.writes.Load() > c.replies }

// disguised says whether a hook of the client's has replaced the argument that is to notice.
func (c *command) disguised() bool {
	args := c.Args()
	return args[len(args)-1] != any(&c.last)
}

// NoRetry tells go-redis not to repeat the command.
func (*command) NoRetry() bool { return true }

// Clone keeps what the embedded command's Clone would lose: that it must not be repeated.
func (c *command) Clone() redis.Cmder {
	return &command{Cmd: c.Cmd.Clone().(*redis.Cmd), master: c.master, asks: c.asks}
}

// Name returns that of a command that writes for what only a master may be asked: a ClusterClient
// that reads from replicas knows by its name that a command only reads.
func (c *command) Name() string {
	if c.master {
		return "evalsha"
	}
	return c.Cmd.Name()
}

// newCommand returns what go-redis is to send.
func newCommand(ctx context.Context, cmd redisson.Command) *command {
	if cmd.Script == "" {
		return newQuestion(ctx, cmd)
	}
	return newScript(ctx, cmd)
}

// newQuestion returns a command that changes nothing.
func newQuestion(ctx context.Context, cmd redisson.Command) *command {
	args := make([]any, 0, 1+len(cmd.Keys)+len(cmd.Args))
	args = append(args, strings.ToLower(cmd.Verb))
	for _, key := range cmd.Keys {
		args = append(args, key)
	}
	for _, arg := range cmd.Args {
		args = append(args, arg)
	}
	c := wrap(ctx, args, int8(min(len(cmd.Keys), 1)))
	c.asks = true
	return c
}

func newScript(ctx context.Context, cmd redisson.Command) *command {
	args := make([]any, 3+len(cmd.Keys)+len(cmd.Args))
	args[0], args[1], args[2] = "evalsha", cmd.Script, len(cmd.Keys)
	if cmd.Verb == redisson.Eval {
		args[0] = "eval"
	}
	for i, key := range cmd.Keys {
		args[3+i] = key
	}
	c := wrap(ctx, args, 3)
	if len(cmd.Args) == 0 {
		c.last.writes.Store(1) // hooks may want to see a key as it is: for all that is known it is sent
		return c
	}
	last := len(cmd.Args) - 1
	for i, arg := range cmd.Args[:last] {
		args[3+len(cmd.Keys)+i] = arg
	}
	c.last.text = cmd.Args[last]
	args[len(args)-1] = &c.last
	return c
}

// wrap returns a command of these arguments. Its first key is the argument at the position.
func wrap(ctx context.Context, args []any, keyPos int8) *command {
	c := &command{Cmd: redis.NewCmd(ctx, args...)}
	c.SetVal(noReply{})
	c.SetFirstKeyPos(keyPos)
	c.SetStepCount(1) // else a ClusterClient asks the server for it, with a COMMAND
	return c
}

// unknownToServer says whether the server did not know the script. Then it did nothing.
func (c *command) unknownToServer() bool {
	return c.refused && !c.unsettled() && redis.HasErrorPrefix(c.Err(), "NOSCRIPT")
}

// reply returns what the command was answered.
func (c *command) reply() redisson.Reply {
	reply, err := c.Result()
	switch {
	case c.read() && err == redis.Nil:
		return redisson.Reply{}
	case c.read() && err == nil && reply != nil:
		return redisson.Reply{Value: reply}
	case err == nil || c.asks && err == redis.Nil:
		return redisson.Reply{Err: errNoReply} // a hook of the client's has taken it
	case c.asks && !c.refused:
		return redisson.Reply{Err: withKind(err)}
	case c.asks, c.unknownToServer():
		return refusal(err)
	case c.unsettled() || c.last.writes.Load() == 0 && c.disguised() || c.replies > 0 && !c.refused:
		return redisson.Reply{Err: asUnknown(err)}
	case c.refused && err != redis.Nil && isReply(err):
		return refusal(err)
	default:
		return redisson.Reply{Err: notSent(err)}
	}
}

// refusal is the reply of a server that has refused a command.
func refusal(err error) redisson.Reply {
	r := redisson.Reply{Err: withKind(err)}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		r.Refusal = reply.Error()
	}
	return r
}

// answered says whether there is a reply or an error.
func (c *command) answered() bool { return c.read() || c.Err() != nil }

// astray says whether the command may have gone to the wrong server.
func (c *command) astray() bool {
	err := c.Err()
	var reply redis.Error
	if err == nil || !errors.As(err, &reply) {
		return err != nil
	}
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "READONLY") ||
		redis.HasErrorPrefix(err, "CLUSTERDOWN") || redis.HasErrorPrefix(err, "MASTERDOWN")
}

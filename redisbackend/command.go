package redisbackend

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/redisson"
)

// A command is a Redis command that go-redis sends, but must not repeat. If the reply was lost, the
// command may have been carried out, and an acquisition or a release must not count twice.
//
// The result from go-redis doesn't tell whether the server answered the command. The result may be
// a redis.Nil from a different request, made by a dialer, a credentials provider or a Sentinel
// client. An error reply may be the answer to the greeting of a connection, or a redirection to
// another server. So the command itself records when it is written, and when its reply is read.
type command struct {
	*redis.Cmd
	master bool // whether it must go to a master
	// asks is set if the command changes nothing. For such a command, it doesn't matter whether it
	// was sent.
	asks bool
	// last is the last argument of a script, and counts how often the script is written. Other
	// commands don't use it.
	last lastArgument
	// replies is the number of writes of the command that were answered.
	replies int32
	refused bool // whether the last answer was an error
}

// A lastArgument is the last argument of a command. It counts how many times go-redis writes the
// argument, and thereby the command. Before the argument is written, no server has the whole
// command.
type lastArgument struct {
	text string
	// writes counts how many times the argument was written. The special value recalled means that
	// the command must no longer be written.
	writes atomic.Int32
	// shown is set once a hook has read the text, because the hook might send it.
	shown atomic.Bool
}

const recalled = -1

var errRecalled = errors.New("redis: the caller left before the command was sent")

// MarshalBinary returns the text and counts the write. go-redis calls it to write the command.
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

// String returns the text. It is for hooks, such as those that log commands. Once it has been
// called, the command can't be recalled, since the hook might send the text.
func (a *lastArgument) String() string {
	a.shown.Store(true)
	return a.text
}

// recall prevents the commands of one pipeline from being written. It returns false if it is too
// late. It marks only the first command, since go-redis writes none if it can't write the first.
func recall(cmds []*command) bool {
	first := cmds[0]
	return !first.asks && !first.last.shown.Load() && first.last.writes.CompareAndSwap(0, recalled)
}

// noReply is the value of a command until a reply is read.
type noReply struct{}

func (noReply) String() string { return "no reply" }

// SetErr implements [redis.Cmder]. go-redis calls it with the error of a reply that it read, and
// with its own errors. After an error, the client may try another server, so SetErr discards the
// part of the reply that was read.
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

// read reports whether at least a part of the reply was read.
func (c *command) read() bool {
	_, not := c.Val().(noReply)
	return !not
}

// unsettled reports whether the command was written more often than it was answered.
func (c *command) unsettled() bool { return c.last.writes.Load() > c.replies }

// disguised reports whether a hook of the client has replaced the last argument. Then the writes of
// the command weren't counted.
func (c *command) disguised() bool {
	args := c.Args()
	return args[len(args)-1] != any(&c.last)
}

// NoRetry tells go-redis not to repeat the command.
func (*command) NoRetry() bool { return true }

// Clone returns a copy of the command. The Clone method of the embedded command would return one
// that go-redis may repeat.
func (c *command) Clone() redis.Cmder {
	return &command{Cmd: c.Cmd.Clone().(*redis.Cmd), master: c.master, asks: c.asks}
}

// Name returns the name of the command. But if the command must go to a master, Name returns the
// name of some command that writes, since a ClusterClient that reads from replicas chooses the
// server by the command's name.
func (c *command) Name() string {
	if c.master {
		return "evalsha"
	}
	return c.Cmd.Name()
}

// newCommand converts a command of package redisson to one for go-redis.
func newCommand(ctx context.Context, cmd redisson.Command) *command {
	if cmd.Script == "" {
		return newQuestion(ctx, cmd)
	}
	return newScript(ctx, cmd)
}

// newQuestion is like newCommand, but for a command that only reads.
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
		// The last argument is a key. It stays a string, because hooks might read it, so its writes
		// can't be counted. The command is therefore treated as sent.
		c.last.writes.Store(1)
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

// wrap returns a command with the given arguments. Its first key is the argument at keyPos.
func wrap(ctx context.Context, args []any, keyPos int8) *command {
	c := &command{Cmd: redis.NewCmd(ctx, args...)}
	c.SetVal(noReply{})
	c.SetFirstKeyPos(keyPos)
	// Otherwise a ClusterClient would send a COMMAND to learn the step count.
	c.SetStepCount(1)
	return c
}

// unknownToServer reports whether the server did nothing because it didn't know the script.
func (c *command) unknownToServer() bool {
	return c.refused && !c.unsettled() && redis.HasErrorPrefix(c.Err(), "NOSCRIPT")
}

// reply returns the reply to the command, or its error.
func (c *command) reply() redisson.Reply {
	reply, err := c.Result()
	switch {
	case c.read() && err == redis.Nil:
		return redisson.Reply{}
	case c.read() && err == nil && reply != nil:
		return redisson.Reply{Value: reply}
	case err == nil || c.asks && err == redis.Nil:
		return redisson.Reply{Err: errNoReply} // a hook of the client has dropped the reply
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

// refusal converts a server's error reply.
func refusal(err error) redisson.Reply {
	r := redisson.Reply{Err: withKind(err)}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		r.Refusal = reply.Error()
	}
	return r
}

// answered reports whether there is a reply or an error.
func (c *command) answered() bool { return c.read() || c.Err() != nil }

// astray reports whether the command may have gone to a wrong or unreachable server.
func (c *command) astray() bool {
	err := c.Err()
	var reply redis.Error
	if err == nil || !errors.As(err, &reply) {
		return err != nil
	}
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "READONLY") ||
		redis.HasErrorPrefix(err, "CLUSTERDOWN") || redis.HasErrorPrefix(err, "MASTERDOWN")
}

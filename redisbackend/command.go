package redisbackend

import (
	"context"
	"errors"
	"slices"
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

// ask returns a command that changes nothing. Its first key is the argument at the position.
func ask(ctx context.Context, keyPos int8, args ...any) *command {
	c := newCommand(ctx, keyPos, args)
	c.asks = true
	return c
}

func newCommand(ctx context.Context, keyPos int8, args []any) *command {
	c := &command{Cmd: redis.NewCmd(ctx, args...)}
	c.SetVal(noReply{})
	c.SetFirstKeyPos(keyPos)
	c.SetStepCount(1) // else a ClusterClient asks the server for it, with a COMMAND
	return c
}

// evalSHA runs a script that the server knows already.
func evalSHA(ctx context.Context, call redisson.Call) *command {
	return newScript(ctx, "evalsha", call.Script.SHA1, call)
}

// eval runs a script and makes it known to the server.
func eval(ctx context.Context, call redisson.Call) *command {
	return newScript(ctx, "eval", call.Script.Text, call)
}

func newScript(ctx context.Context, verb, script string, call redisson.Call) *command {
	args := make([]any, 3+len(call.Keys)+len(call.Args))
	args[0], args[1], args[2] = verb, script, len(call.Keys)
	for i, key := range call.Keys {
		args[3+i] = key
	}
	c := newCommand(ctx, 3, args)
	if len(call.Args) == 0 {
		c.last.writes.Store(1) // hooks may want to see a key as it is: for all that is known it is sent
		return c
	}
	last := len(call.Args) - 1
	for i, arg := range call.Args[:last] {
		args[3+len(call.Keys)+i] = arg
	}
	c.last.text = call.Args[last]
	args[len(args)-1] = &c.last
	return c
}

// unknownToServer says whether the server did not know the script. Then it did nothing.
func (c *command) unknownToServer() bool {
	return c.refused && !c.unsettled() && redis.HasErrorPrefix(c.Err(), "NOSCRIPT")
}

// reply returns the reply, nil for a null one, or an error with its kind.
func (c *command) reply() (any, error) {
	reply, err := c.Result()
	switch {
	case c.read() && err == redis.Nil:
		return nil, nil
	case c.read() && err == nil && reply != nil:
		return reply, nil
	case err == nil || c.asks && err == redis.Nil:
		return nil, errNoReply // a hook of the client's has taken it
	case c.asks:
		return nil, withKind(err)
	case c.unsettled() || c.last.writes.Load() == 0 && c.disguised() || c.replies > 0 && !c.refused:
		return nil, asUnknown(err)
	case c.refused && err != redis.Nil && isReply(err):
		return nil, withKind(err)
	default:
		return nil, notSent(err)
	}
}

// parse returns what a parser makes of a reply.
func parse[T any](reply any, err error, parser func(any) (T, error)) (T, error) {
	if err != nil {
		var zero T
		return zero, err
	}
	return parser(reply)
}

// run carries out one script: one round trip, but for the first time that a server sees it.
func (s *session) run(ctx context.Context, call redisson.Call) (reply any, err error) {
	cmd := evalSHA(ctx, call)
	if err := s.send(ctx, cmd); err != nil {
		return nil, err
	}
	if cmd.unknownToServer() {
		cmd = eval(ctx, call)
		if err := s.send(ctx, cmd); err != nil {
			return nil, err
		}
	}
	return cmd.reply()
}

// send sends commands together. It returns an error if the caller has left before they were answered;
// else each has its own reply or error.
func (s *session) send(ctx context.Context, cmds ...*command) error {
	if s.sender == nil {
		s.sendNow(ctx, cmds...)
		return nil
	}
	_, err := s.sender.Send(ctx, cmds...)
	return err
}

// sendNow is send in this goroutine, whatever becomes of ctx.
func (s *session) sendNow(ctx context.Context, cmds ...*command) {
	if len(cmds) > 1 {
		s.pipeline(ctx, s.client, cmds...)
		return
	}
	_ = s.client.Process(ctx, cmds[0]) // returns the command's own error
	s.learn(ctx, cmds...)
}

// pipeline sends commands together, by way of the session's client or a node's. Each then has its own
// reply or error.
func (s *session) pipeline(ctx context.Context, client redis.UniversalClient, cmds ...*command) {
	pipe := client.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // only queues it
	}
	// Exec returns the first of their errors. But where the server refuses the connection, with an
	// error reply to the greeting, go-redis leaves the commands as they were.
	if _, err := pipe.Exec(ctx); err != nil && !slices.ContainsFunc(cmds, (*command).answered) {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	s.learn(ctx, cmds...)
}

// answered says whether there is a reply or an error.
func (c *command) answered() bool { return c.read() || c.Err() != nil }

// learn has a ClusterClient ask again which server has what if a command has met a server that does
// not answer or is not the right one. By itself go-redis does so where it repeats commands, or after
// minutes.
func (s *session) learn(ctx context.Context, cmds ...*command) {
	if s.cluster != nil && slices.ContainsFunc(cmds, (*command).astray) {
		s.cluster.ReloadState(ctx)
	}
}

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

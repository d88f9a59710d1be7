package redisbackend

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/redisson"
)

// command is a command that go-redis must not repeat by itself: one whose reply was lost may have
// been carried out, and acquiring and releasing count.
type command struct {
	*redis.Cmd
	master bool // only a master may be asked
}

// NoRetry tells go-redis not to repeat the command.
func (command) NoRetry() bool { return true }

// Clone keeps what the embedded command's Clone would lose: that it must not be repeated.
func (c command) Clone() redis.Cmder {
	c.Cmd = c.Cmd.Clone().(*redis.Cmd)
	return c
}

// Name returns nothing for what only a master may be asked: a ClusterClient that reads from
// replicas knows by its name that a command only reads.
func (c command) Name() string {
	if c.master {
		return ""
	}
	return c.Cmd.Name()
}

// newCommand returns a command whose first key is the argument at the position.
func newCommand(ctx context.Context, keyPos int8, args ...any) command {
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(keyPos)
	cmd.SetStepCount(1) // else a ClusterClient asks the server for it, with a COMMAND
	return command{Cmd: cmd}
}

// evalSHA runs a script that the server knows already.
func evalSHA(ctx context.Context, call redisson.Call) command {
	return newScript(ctx, "evalsha", call.Script.SHA1, call)
}

// eval runs a script and makes it known to the server.
func eval(ctx context.Context, call redisson.Call) command {
	return newScript(ctx, "eval", call.Script.Text, call)
}

func newScript(ctx context.Context, verb, script string, call redisson.Call) command {
	args := make([]any, 0, 3+len(call.Keys)+len(call.Args))
	args = append(args, verb, script, len(call.Keys))
	for _, key := range call.Keys {
		args = append(args, key)
	}
	for _, arg := range call.Args {
		args = append(args, arg)
	}
	return newCommand(ctx, 3, args...)
}

// unknownToServer says whether the server did not know the script. Then it did nothing.
func (c command) unknownToServer() bool {
	err := c.Err()
	return err != nil && err != redis.Nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// reply returns the reply, nil for a null one, or an error with its kind.
func (c command) reply() (any, error) {
	reply, err := c.Result()
	switch {
	case err == redis.Nil:
		return nil, nil
	case err != nil:
		return nil, withKind(err)
	case reply == nil:
		return nil, errNoReply // a hook of the client's has taken it
	default:
		return reply, nil
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
func (s *session) send(ctx context.Context, cmds ...command) error {
	if s.sender == nil {
		s.sendNow(ctx, cmds...)
		return nil
	}
	_, err := s.sender.Send(ctx, cmds...)
	return err
}

// sendNow is send in this goroutine, whatever becomes of ctx.
func (s *session) sendNow(ctx context.Context, cmds ...command) {
	if len(cmds) > 1 {
		s.pipeline(ctx, s.client, cmds...)
		return
	}
	_ = s.client.Process(ctx, cmds[0]) // returns the command's own error
	s.learn(ctx, cmds...)
}

// pipeline sends commands together, by way of the session's client or a node's. Each then has its own
// reply or error.
func (s *session) pipeline(ctx context.Context, client redis.UniversalClient, cmds ...command) {
	pipe := client.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // only queues it
	}
	// Exec returns the first of their errors. But where the server refuses the connection, with an
	// error reply to the greeting, go-redis leaves the commands as they were.
	if _, err := pipe.Exec(ctx); err != nil && !slices.ContainsFunc(cmds, command.answered) {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	s.learn(ctx, cmds...)
}

// answered says whether there is a reply or an error.
func (c command) answered() bool { return c.Val() != nil || c.Err() != nil }

// learn has a ClusterClient ask again which server has what if a command has met a server that does
// not answer or is not the right one. By itself go-redis does so where it repeats commands, or after
// minutes.
func (s *session) learn(ctx context.Context, cmds ...command) {
	if s.cluster != nil && slices.ContainsFunc(cmds, command.astray) {
		s.cluster.ReloadState(ctx)
	}
}

// astray says whether the command may have gone to the wrong server.
func (c command) astray() bool {
	err := c.Err()
	var reply redis.Error
	if err == nil || !errors.As(err, &reply) {
		return err != nil
	}
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "READONLY") ||
		redis.HasErrorPrefix(err, "CLUSTERDOWN") || redis.HasErrorPrefix(err, "MASTERDOWN")
}

package redisson

import (
	"context"
	"strings"
)

// A Transport sends commands to the servers, using a client library. It sends each command only
// once, since a command that was written may have been carried out even if its answer is an error.
// A command with keys goes to the master of its first key.
type Transport interface {
	// Send sends a command. The command may share a round trip with other callers' commands.
	Send(ctx context.Context, cmd Command) Reply

	// SendTogether sends commands in the given order, in one round trip. It returns the reply to
	// each.
	SendTogether(ctx context.Context, cmds ...Command) []Reply

	// SendApart is like SendTogether, but on a connection that no other caller uses at the same
	// time. It sends all commands to the server of the first one, regardless of their keys.
	SendApart(ctx context.Context, cmds ...Command) []Reply

	// SendBatch is like SendTogether, but for many commands. They never share a round trip with
	// other callers' commands.
	SendBatch(ctx context.Context, cmds []Command) []Reply

	// Reach returns an error if the server that stores a key can't answer commands now. Each step
	// calls it first.
	Reach(ctx context.Context, key string) error

	// Node returns the name of the cluster node that serves a key, so that requests for one node
	// can be sent in one batch.
	Node(ctx context.Context, key string) (string, error)

	// Masters returns the names of the cluster nodes that serve slots, in ascending order. There is
	// at least one. SendTo sends a command without keys to one of these nodes.
	Masters(ctx context.Context) ([]string, error)
	SendTo(ctx context.Context, master string, cmd Command) Reply

	// Refresh updates the map that Node reads, so that later calls to Node return current results.
	// It is called while batches are under way.
	Refresh(ctx context.Context)
}

// A Command is a command for a server.
type Command struct {
	Verb string // in capital letters
	// Script is the text of the script for an EVAL, or its hash for an EVALSHA. It is empty for
	// other commands, which change nothing.
	Script     string
	Keys, Args []string
}

// These commands run scripts.
const (
	Eval    = "EVAL"
	EvalSHA = "EVALSHA"
)

// bySHA returns the command that runs a script by its hash. It works only if the server knows the
// script.
func (c Call) bySHA() Command { return Command{EvalSHA, c.Script.SHA1, c.Keys, c.Args} }

// byText returns the command that runs a script by its text. Afterwards, the server knows the
// script.
func (c Call) byText() Command { return Command{Eval, c.Script.Text, c.Keys, c.Args} }

// ask returns a command that changes nothing. The first word after the verb is a key.
func ask(verb string, words ...string) Command {
	return Command{Verb: verb, Keys: words[:1:1], Args: words[1:]}
}

// A Reply is the answer to a command.
type Reply struct {
	// Value is the server's answer: nil (for a null), an int64, a string, or a []any of these.
	Value any
	// Err is nil if Value is the answer. Otherwise backend.KindOf(Err) returns its kind.
	Err error
	// Refusal is the text of the server's error reply, or "" if there was none.
	Refusal string
}

// unknownScript reports whether the server didn't know the script.
func (r Reply) unknownScript() bool { return strings.HasPrefix(r.Refusal, "NOSCRIPT") }

// parse applies parser to the value of a reply. If the reply is an error, it returns that error.
func parse[T any](r Reply, parser func(any) (T, error)) (T, error) {
	if r.Err != nil {
		var zero T
		return zero, r.Err
	}
	return parser(r.Value)
}

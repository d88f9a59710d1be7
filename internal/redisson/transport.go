package redisson

import (
	"context"
	"strings"
)

// A Transport carries commands to the servers, by way of a client. It sends each of them once: one that has
// been written may have been carried out, whatever is heard of it. What has keys goes to the master that
// has the first of them.
type Transport interface {
	// Send sends a command, perhaps in one round trip with those of others.
	Send(ctx context.Context, cmd Command) Reply

	// SendTogether sends commands in this order, all in one round trip, and returns the reply to each.
	SendTogether(ctx context.Context, cmds ...Command) []Reply

	// SendApart does the same over a connection that carries nothing else meanwhile. Where the first command
	// goes the others go, too, whatever their keys.
	SendApart(ctx context.Context, cmds ...Command) []Reply

	// SendBatch does what SendTogether does, with many commands, and without those of others.
	SendBatch(ctx context.Context, cmds []Command) []Reply

	// Reach returns an error if what is sent about a key would not be answered. It is asked before each step.
	Reach(ctx context.Context, key string) error

	// Node names the node of a cluster that has a key, so that what is for one can be sent in one batch.
	Node(ctx context.Context, key string) (string, error)

	// Masters names the nodes of a cluster that have slots, at least one, in ascending order. SendTo sends one of them a command
	// that has no key.
	Masters(ctx context.Context) ([]string, error)
	SendTo(ctx context.Context, master string, cmd Command) Reply

	// Refresh brings up to date what Node says, for the next time. It is called while batches are under way.
	Refresh(ctx context.Context)
}

// A Command is what is sent to a server.
type Command struct {
	Verb       string // in capital letters
	Script     string // of EVAL its text, of EVALSHA its hash. Empty for another command, which only asks
	Keys, Args []string
}

// What runs scripts.
const (
	Eval    = "EVAL"
	EvalSHA = "EVALSHA"
)

// bySHA runs a script that the server knows already.
func (c Call) bySHA() Command { return Command{EvalSHA, c.Script.SHA1, c.Keys, c.Args} }

// byText runs a script and makes it known to the server.
func (c Call) byText() Command { return Command{Eval, c.Script.Text, c.Keys, c.Args} }

// ask returns a command that changes nothing. Its first word is a key.
func ask(verb string, words ...string) Command {
	return Command{Verb: verb, Keys: words[:1:1], Args: words[1:]}
}

// A Reply is what a command was answered.
type Reply struct {
	Value   any    // nil for a null, an int64, a string, or a []any of these: only what a server has really said
	Err     error  // with its kind; nil if there is a value
	Refusal string // of a server that has refused the command and done nothing of it: the error in its words
}

// unknownScript says whether the server did not know the script.
func (r Reply) unknownScript() bool { return strings.HasPrefix(r.Refusal, "NOSCRIPT") }

// parse returns what a parser makes of a reply.
func parse[T any](r Reply, parser func(any) (T, error)) (T, error) {
	if r.Err != nil {
		var zero T
		return zero, r.Err
	}
	return parser(r.Value)
}

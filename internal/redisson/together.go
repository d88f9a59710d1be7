package redisson

import (
	_ "embed"
	"errors"
	"regexp"
	"slices"

	"github.com/seed951563bd/distsync/backend"
)

// A single script acquires or releases several plain locks if their names have the same hash tag. A
// cluster keeps such locks in one slot. A proxy that distributes keys by hash tags keeps them on
// one server, and sends the script there. If a script ran on a server that doesn't store the locks,
// it could acquire a lock there while another client holds the same lock on the right server.

//go:embed each.lua
var eachText string

//go:embed acquiretogether.lua
var acquireTogetherText string

//go:embed releasetogether.lua
var releaseTogetherText string

// jointScripts maps the hash of a script for one lock to the script for several. A joint script
// gets the first keys of all calls, followed by their second keys. Its arguments are the ones that
// all calls share, followed by the last argument of each call.
var jointScripts = map[string]Script{
	acquireScript.SHA1:        newScript(eachText + acquireTogetherText),
	releaseScript.SHA1:        newScript(eachText + releaseTogetherText),
	shardedReleaseScript.SHA1: sharded(eachText + releaseTogetherText),
}

// joinSteps joins consecutive calls where possible. It doesn't join a call if the map questions
// contains a command that must be sent after the call. It also returns the index of the first call
// in each joint call.
func joinSteps(calls []Call, questions map[int]Command) (joint []Call, firsts []int) {
	for first := 0; first < len(calls); {
		next := first + 1
		for next < len(calls) && questions[first].Verb == "" && questions[next].Verb == "" &&
			mayJoin(calls[first:next], calls[next]) {
			next++
		}
		joint, firsts = append(joint, join(calls[first:next])), append(firsts, first)
		first = next
	}
	return joint, firsts
}

// mayJoin reports whether a call can be joined with others. Joined calls must be for different
// locks, since the script checks only once, at the start, whether all locks are free.
func mayJoin(others []Call, c Call) bool {
	o, last := others[0], len(c.Args)-1
	_, ok := jointScripts[c.Script.SHA1]
	tag := hashTag(c.Keys[0])
	return ok && o.Script == c.Script && tag != "" && hashTag(o.Keys[0]) == tag &&
		slices.Equal(o.Args[:last], c.Args[:last]) &&
		!slices.ContainsFunc(others, func(o Call) bool { return o.Keys[0] == c.Keys[0] })
}

// join returns a call that does the work of all given calls. It returns a single call unchanged.
func join(calls []Call) Call {
	one := calls[0]
	if len(calls) == 1 {
		return one
	}
	last := len(one.Args) - 1
	all := Call{Script: jointScripts[one.Script.SHA1], Args: slices.Clone(one.Args[:last])}
	for k := range one.Keys {
		for _, c := range calls {
			all.Keys = append(all.Keys, c.Keys[k])
		}
	}
	for _, c := range calls {
		all.Args = append(all.Args, c.Args[last])
	}
	return all
}

// refusedBefore reports whether the server certainly refused a script before running it. An
// Unknown error may come from a proxy that lost the server's answer.
func (r Reply) refusedBefore() bool {
	_, inScript := parseError(r.Refusal)
	return r.Refusal != "" && !inScript && backend.KindOf(r.Err) != backend.Unknown
}

// each splits the reply to a joint call into the replies to its n steps.
func (r Reply) each(n int) []Reply {
	values, ok := r.Value.([]any)
	if r.Err == nil && (!ok || len(values) != n) {
		r = Reply{Err: unexpected("several steps", r.Value)}
	}
	if r.Err != nil {
		return slices.Repeat([]Reply{r}, n)
	}
	all := make([]Reply, n)
	for i, value := range values {
		all[i] = Reply{Value: value}
		if text, ok := value.(string); ok && text != "" && text[0] == '-' {
			all[i] = failedStep(text[1:])
		}
	}
	return all
}

// raisedAt matches the prefix that servers before 7.0, and miniredis, add to an error from inside a
// script.
var raisedAt = regexp.MustCompile(`^(?:(?:@?user_script)?: ?\d+: )+-?`)

// failedStep returns the reply for one step of a joint call, given the text of the step's error.
func failedStep(text string) Reply {
	text = raisedAt.ReplaceAllString(text, "") + " (in a script)"
	return Reply{Err: ServerError(text, errors.New(text)), Refusal: text}
}

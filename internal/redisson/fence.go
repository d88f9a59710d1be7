package redisson

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A Fence changes keys for the holder of a fenced lock. Its scripts refuse stale tokens.
type Fence struct {
	Store     string // the store's name in errors
	Transport Transport
	Cluster   bool // whether the transport leads to a cluster
	Token     uint64
}

// These are the error codes of the guard. See guarded.
const (
	staleToken = "STALETOKEN"
	noToken    = "NOTOKEN"
)

var (
	//go:embed fence.lua
	fenceText string

	fencedSetText = `
if (ARGV[2] == '0') then
    redis.call('set', KEYS[1], ARGV[1]);
else
    redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2]);
end;
`
	fencedHSetText = `
for i = 1, #ARGV, 2 do
    redis.call('hset', KEYS[1], ARGV[i], ARGV[i + 1]);
end;
`
)

// FenceKey returns the key that stores the largest token that has claimed the given key. In a
// cluster, both keys are in the same slot, except for some keys with braces. See Fence.check.
func FenceKey(key string) string { return apart("distsync_fence:", key) }

// guarded puts a guard in front of a script, and returns the result. The guard checks the fence of
// each key that the script uses. In a call, the fence keys follow the script's own keys, and the
// token follows the script's own arguments. The guard removes the fence keys and the token, so that
// the script doesn't see them. It refers to each fence key by a constant index, since some servers
// accept nothing else. If the script's first line contains flags, it stays the first line.
func guarded(script string, keys int) string {
	var b strings.Builder
	if strings.HasPrefix(script, "#!") || strings.HasPrefix(script, "--!") {
		flags, rest, _ := strings.Cut(script, "\n")
		script = rest
		b.WriteString(flags + "\n")
	}
	b.WriteString("do\n")
	b.WriteString(fenceText)
	for i := keys + 1; i <= 2*keys; i++ {
		fmt.Fprintf(&b, "refused = refused or check(KEYS[%d], redis.call('get', KEYS[%d]));\n",
			i, i)
	}
	b.WriteString("if (refused) then\n    return refused;\nend;\n")
	for i := keys + 1; i <= 2*keys; i++ {
		fmt.Fprintf(&b, "redis.call('set', KEYS[%d], token);\n", i)
	}
	for range keys {
		b.WriteString("table.remove(KEYS);\n")
	}
	b.WriteString("end;\n" + script)
	return b.String()
}

// Claim makes keys refuse all smaller tokens.
func (f Fence) Claim(ctx context.Context, keys []string) error {
	_, err := f.run(ctx, "claim", "", keys, nil)
	return err
}

// Set sets a key. If expires isn't zero, the key expires after that duration.
func (f Fence) Set(ctx context.Context, key, value string, expires time.Duration) error {
	left := expires.Milliseconds()
	if expires < 0 || expires > 0 && left == 0 {
		return f.errorf("set", []string{key}, invalid("it would expire after %v", expires))
	}
	args := []string{value, strconv.FormatInt(left, 10)}
	_, err := f.run(ctx, "set", fencedSetText, []string{key}, args)
	return err
}

// HSet sets fields of a hash.
func (f Fence) HSet(ctx context.Context, key string, pairs []string) error {
	if len(pairs) == 0 || len(pairs)%2 != 0 {
		err := invalid("%d words are no fields with values", len(pairs))
		return f.errorf("hset", []string{key}, err)
	}
	_, err := f.run(ctx, "hset", fencedHSetText, []string{key}, pairs)
	return err
}

// Eval runs a script with the guard in front of it. See guarded.
func (f Fence) Eval(ctx context.Context, script string, keys, args []string) (any, error) {
	return f.run(ctx, "eval", script, keys, args)
}

func (f Fence) run(ctx context.Context, op, script string, keys, args []string) (any, error) {
	if err := f.check(keys); err != nil {
		return nil, f.errorf(op, keys, err)
	}
	if err := f.Transport.Reach(ctx, keys[0]); err != nil {
		return nil, f.errorf(op, keys, err)
	}
	all := slices.Clone(keys)
	for _, key := range keys {
		all = append(all, FenceKey(key))
	}
	words := append(slices.Clone(args), strconv.FormatUint(f.Token, 10))
	c := Call{newScript(guarded(script, len(keys))), all, words}
	r := f.Transport.Send(ctx, c.bySHA())
	if r.unknownScript() {
		r = f.Transport.Send(ctx, c.byText())
	}
	if r.Err != nil {
		return nil, f.errorf(op, keys, f.reason(r))
	}
	return r.Value, nil
}

// check returns an error if a call with these keys can't be guarded.
func (f Fence) check(keys []string) error {
	switch {
	case f.Token == 0:
		return invalid("there is no token: the lock must be one of Client.FencedLocker")
	case len(keys) == 0:
		return invalid("there is no key")
	case !f.Cluster:
		return nil
	}
	for _, key := range keys {
		if slot, fence := Slot(key), Slot(FenceKey(key)); slot != fence {
			return invalid("in a cluster %q can't be guarded:"+
				" its braces put the key into slot %d and its fence %q into slot %d",
				key, slot, FenceKey(key), fence)
		}
		if Slot(key) != Slot(keys[0]) {
			return invalid("%q and %q are in different slots of the cluster", keys[0], key)
		}
	}
	return nil
}

// reason returns the error of a call that failed.
func (f Fence) reason(r Reply) error {
	switch code, rest, _ := strings.Cut(r.Refusal, " "); code {
	case staleToken:
		return invalid("%w: a later holder has claimed it, with token %s", backend.ErrLost, rest)
	case noToken:
		return invalid("the key %q is in use for data that isn't a token", rest)
	case "WRONGTYPE":
		// The error may come from the caller's script, which may already have changed keys.
		return &backend.Error{Kind: backend.Unknown, Err: errors.New(r.Refusal)}
	}
	return r.Err
}

func (f Fence) errorf(op string, keys []string, err error) error {
	var what any = keys
	if len(keys) == 1 {
		what = keys[0]
	}
	return fmt.Errorf("%s: fenced %s of %q with token %d: %w", f.Store, op, what, f.Token, err)
}

// invalid returns the error of a call that can't succeed, no matter how often it is repeated.
func invalid(format string, args ...any) error {
	return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf(format, args...)}
}

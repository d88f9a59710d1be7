package wiretest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A Fence is a redisbackend.Fence or a valkeybackend.Fence.
type Fence interface {
	Claim(ctx context.Context, keys ...string) error
	Set(ctx context.Context, key, value string, expires time.Duration) error
	HSet(ctx context.Context, key string, pairs ...string) error
	Eval(ctx context.Context, script string, keys, args []string) (any, error)
}

// wantStale fails the test unless err reports a write with a stale token.
func wantStale(t testing.TB, err error, says ...string) {
	t.Helper()
	WantKind(t, err, backend.Refused)
	if !errors.Is(err, dlock.ErrLost) {
		t.Errorf("error %v, want ErrLost", err)
	}
	for _, word := range says {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("%v doesn't say %s", err, word)
		}
	}
}

// Fences tests that writes with a stale token are refused.
func Fences(t *testing.T, server *testservers.Server, fence func(token uint64) Fence) {
	ctx := t.Context()
	do := func(words ...string) string { t.Helper(); return server.Do(words...) }
	want := func(t *testing.T, command, want string) {
		t.Helper()
		if got := do(strings.Fields(command)...); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	check := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	run := func(what string, test func(t *testing.T)) {
		t.Run(what, func(t *testing.T) { do("FLUSHALL"); test(t) })
	}
	const incr = `return redis.call('incrby', KEYS[1], ARGV[1]);`

	run("set", func(t *testing.T) {
		check(t, fence(17).Set(ctx, "k", "first", 0))
		check(t, fence(17).Set(ctx, "k", "again", time.Minute)) // a holder may write more than once
		want(t, "GET k", "again")
		want(t, "GET distsync_fence:{k}", "17")
		want(t, "PTTL distsync_fence:{k}", "-1")
		if left, _ := strconv.Atoi(do("PTTL", "k")); left <= 0 || left > 60_000 {
			t.Errorf("it expires in %d ms", left)
		}
		check(t, fence(18).Set(ctx, "k", "later", 0))
		wantStale(t, fence(17).Set(ctx, "k", "late", 0),
			`fenced set of "k" with token 17`, "token 18")
		want(t, "GET k", "later")
		want(t, "PTTL k", "-1")
		WantKind(t, fence(18).Set(ctx, "k", "soon over", time.Microsecond), backend.Refused)
	})

	run("hset", func(t *testing.T) {
		check(t, fence(2).HSet(ctx, "h", "a", "1", "b", "2"))
		wantStale(t, fence(1).HSet(ctx, "h", "a", "late"), `fenced hset of "h" with token 1`)
		want(t, "HGET h a", "1")
		want(t, "HGET h b", "2")
		WantKind(t, fence(2).HSet(ctx, "h", "a"), backend.Refused)
		WantKind(t, fence(2).HSet(ctx, "h"), backend.Refused)
		do("SET", "text", "t")
		err := fence(2).HSet(ctx, "text", "a", "1")
		if err == nil || errors.Is(err, dlock.ErrConflict) {
			t.Errorf("a hash in the place of a string: %v", err)
		}
	})

	run("a script", func(t *testing.T) {
		for i := range 3 {
			got, err := fence(5).Eval(ctx, incr, []string{"n"}, []string{"10"})
			if check(t, err); got != int64(10*(i+1)) {
				t.Errorf("the script returned %v", got)
			}
		}
		_, err := fence(4).Eval(ctx, incr, []string{"n"}, []string{"10"})
		wantStale(t, err, "eval")
		want(t, "GET n", "30")

		// The script gets its keys and arguments, and Eval returns its result.
		got, err := fence(5).Eval(ctx, `return {KEYS[1], #KEYS, ARGV[1], #ARGV}`,
			[]string{"n"}, []string{"x"})
		if check(t, err); !reflect.DeepEqual(got, []any{"n", int64(1), "x", int64(1)}) {
			t.Errorf("the script sees %v", got)
		}
		for script, want := range map[string]any{
			``: nil, `return nil`: nil, `return 'more'`: "more", `return {ok = 'OK'}`: "OK",
			"#!lua flags=allow-cross-slot-keys\nreturn 7": int64(7),
			"--!df flags=allow-undeclared-keys\nreturn 8": int64(8),
		} {
			got, err := fence(5).Eval(ctx, script, []string{"n"}, nil)
			if err != nil || got != want {
				t.Errorf("%q: %v, %v; want %v", script, got, err, want)
			}
		}
		half := `redis.call('set', KEYS[1], 'x'); return redis.call('hlen', KEYS[1]);`
		_, err = fence(5).Eval(ctx, half, []string{"n"}, nil)
		WantKind(t, err, backend.Unknown) // the script wrote before it failed
	})

	run("several keys", func(t *testing.T) {
		check(t, fence(10).Claim(ctx, "b"))
		move := `redis.call('decr', KEYS[1]); redis.call('incr', KEYS[2]);`
		_, err := fence(9).Eval(ctx, move, []string{"a", "b"}, nil)
		wantStale(t, err, `["a" "b"]`, "token 10")
		want(t, "EXISTS a b distsync_fence:{a}", "0")
		_, err = fence(11).Eval(ctx, move, []string{"a", "b"}, nil)
		check(t, err)
		wantStale(t, fence(10).Claim(ctx, "a"))
		want(t, "GET a", "-1")
		want(t, "GET b", "1")
	})

	run("large tokens", func(t *testing.T) {
		tokens := []uint64{9, 10, 999, 1000, 9007199254740992, 9007199254740993, 1<<64 - 1}
		for i, token := range tokens {
			check(t, fence(token).Claim(ctx, "k"))
			for _, stale := range tokens[:i] {
				wantStale(t, fence(stale).Claim(ctx, "k"))
			}
		}
	})

	run("not to be guarded", func(t *testing.T) {
		refused := func(err error, says string) {
			t.Helper()
			if !IsKind(err, backend.Refused) || !strings.Contains(err.Error(), says) {
				t.Errorf("error %v, want one that says %s", err, says)
			}
		}
		refused(fence(0).Set(ctx, "k", "v", 0), "FencedLocker")
		WantKind(t, fence(1).Claim(ctx), backend.Refused)
		_, err := fence(1).Eval(ctx, "return 1", nil, nil)
		WantKind(t, err, backend.Refused)
		do("SET", "distsync_fence:{k}", "no token")
		refused(fence(1).Set(ctx, "k", "v", 0), "distsync_fence:{k}")
		want(t, "GET distsync_fence:{k}", "no token")
		want(t, "EXISTS k", "0")
	})

	run("a replica", func(t *testing.T) {
		check(t, fence(1).Set(ctx, "k", "v", 0))
		do("REPLICAOF", "127.0.0.1", strconv.Itoa(testservers.FreePort(t)))
		defer do("REPLICAOF", "NO", "ONE")
		WantKind(t, fence(2).Set(ctx, "k", "late", 0), backend.Retry)
		want(t, "GET k", "v")
	})
}

// LateWrites tests that a holder whose lease expires while it works doesn't overwrite the writes of
// later holders. Each holder reads a number and writes the next one. Most holders pause for longer
// than their lease.
func LateWrites(
	t *testing.T, server *testservers.Server, b backend.Backend, fence func(token uint64) Fence,
) {
	const holders, turns, lease = 6, 15, 15 * time.Millisecond
	ctx, client := t.Context(), connect(t, server.Addr)
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		written int
		refused int
	)
	quiet := dlock.WithLogger(slog.New(slog.DiscardHandler))
	for range holders {
		locker := locks(t, b, quiet).FencedLocker("lock:late")
		running.Go(func() {
			for range turns {
				h, err := locker.Acquire(ctx, dlock.FixedLease(lease))
				if err != nil {
					t.Error(err)
					return
				}
				token, _ := h.Token()
				wrote, err := addOne(ctx, fence(token), func() int {
					n, _ := client.Get(ctx, "late").Int()
					time.Sleep(rand.N(3 * lease)) // this ignores the context of the hold
					return n
				})
				mu.Lock()
				switch {
				case wrote:
					written++
				case errors.Is(err, dlock.ErrLost):
					refused++
				default:
					t.Error(err)
				}
				mu.Unlock()
				_ = h.Release(ctx) // the hold may have ended
			}
		})
	}
	running.Wait()
	if n, _ := client.Get(ctx, "late").Int(); n != written {
		t.Errorf("the number is %d after %d writes", n, written)
	}
	if written == 0 || refused == 0 {
		t.Errorf("%d were written and %d refused: nothing was tried", written, refused)
	}
}

func addOne(ctx context.Context, fence Fence, read func() int) (wrote bool, err error) {
	if err := fence.Claim(ctx, "late"); err != nil {
		return false, err
	}
	if err := fence.Set(ctx, "late", strconv.Itoa(read()+1), 0); err != nil {
		return false, err
	}
	return true, nil
}

// FencesInCluster tests that a key and its fence are on the same node.
func FencesInCluster(t *testing.T, nodes []*testservers.Server, fence func(token uint64) Fence) {
	ctx := t.Context()
	keys := []string{"{bank}7", "a{b}c{d}", "{"}
	for i := range 30 { // enough keys for each node to have some
		keys = append(keys, fmt.Sprint("account:", i))
	}
	for _, key := range keys {
		if key == "{" {
			err := fence(1).Set(ctx, key, "v", 0)
			if !IsKind(err, backend.Refused) || !strings.Contains(err.Error(), "slot") {
				t.Errorf("%q: %v, want that its slots differ", key, err)
			}
			continue
		}
		if err := fence(2).Set(ctx, key, "v", 0); err != nil {
			t.Error(err)
		}
		wantStale(t, fence(1).Set(ctx, key, "late", 0))
		has, _ := Owners(t, nodes, key)
		if got := has.Do("GET", key); got != "v" {
			t.Errorf("%s: %q", key, got)
		}
	}
	_, err := fence(3).Eval(ctx, "return 1", []string{"a", "b"}, nil)
	WantKind(t, err, backend.Refused)
	_, err = fence(3).Eval(ctx, "return 1", []string{"{bank}7", "{bank}8"}, nil)
	if err != nil {
		t.Error(err)
	}
}

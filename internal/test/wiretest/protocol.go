package wiretest

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// The scripts from Redisson's documentation, without insignificant white space. They are repeated
// here to detect accidental changes to the script files.
const (
	goldenAcquire = `if (redis.call('exists', KEYS[1]) == 0) then redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; ` +
		`if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]); return nil; end; ` +
		`return redis.call('pttl', KEYS[1]);`
	goldenRelease = `if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end; ` +
		`local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1); ` +
		`if (counter > 0) then redis.call('pexpire', KEYS[1], ARGV[2]); return 0; ` +
		`else redis.call('del', KEYS[1]); redis.call('publish', KEYS[2], ARGV[1]); return 1; end; return nil;`
	goldenRenew = `if (redis.call('hexists', KEYS[1], ARGV[2]) == 1) then redis.call('pexpire', KEYS[1], ARGV[1]); return 1; end; return 0;`
	goldenForce = `if (redis.call('del', KEYS[1]) == 1) then redis.call('publish', KEYS[2], ARGV[1]); return 1 else return 0 end`
)

// Protocol checks every command that a session sends to a server, argument by argument, and the
// keys that the session leaves there.
func Protocol(t *testing.T, server *testservers.Server, s Session) {
	const channel = "redisson_lock__channel:{n}"
	ctx := t.Context()
	client := connect(t, server.Addr)
	messages := listen(t, client, channel)
	m := Watch(t, server.Addr)

	Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
	wantScript(t, m.Commands(), goldenAcquire, 1, "n", 30000, Alice)
	WantHash(t, client, "n", map[string]string{Alice: "1"}, Lease)
	m.Commands()

	req := Reenter(Alice)
	req.Lease = 10 * time.Second
	if res := Must[backend.AcquireResult](t)(s.Acquire(ctx, req)); !res.Acquired || res.Count != 2 {
		t.Errorf("re-entry: %+v, want the count 2", res)
	}
	wantCommands(t, m, `"EVALSHA" "SHA" "1" "n" "10000" `+Quoted(Alice), Quoted("HGET", "n", Alice))
	WantHash(t, client, "n", map[string]string{Alice: "2"}, 10*time.Second)

	m.Commands()
	res := Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Bob)))
	if res.Acquired || res.Remaining <= 0 || res.Remaining > 10*time.Second {
		t.Errorf("the second's attempt: %+v, want refused for up to 10 s", res)
	}
	wantCommands(t, m, `"EVALSHA" "SHA" "1" "n" "30000" `+Quoted(Bob))

	Must[backend.RenewResult](t)(s.Renew(ctx, backend.RenewRequest{
		Name: "n", Owner: Alice, Lease: 20 * time.Second,
	}))
	wantScript(t, m.Commands(), goldenRenew, 1, "n", 20000, Alice)
	WantHash(t, client, "n", map[string]string{Alice: "2"}, 20*time.Second)

	m.Commands()
	if res := Must[backend.ReleaseResult](t)(
		s.Release(ctx, Release(Alice))); res.Outcome != backend.Left {
		t.Errorf("release of one of two: %v", res.Outcome)
	}
	wantScript(t, m.Commands(), goldenRelease, 2, "n", channel, 0, 30000, Alice)
	WantHash(t, client, "n", map[string]string{Alice: "1"}, Lease)

	m.Commands()
	if res := Must[backend.ReleaseResult](t)(
		s.Release(ctx, Release(Alice))); res.Outcome != backend.Freed {
		t.Errorf("release of the last: %v", res.Outcome)
	}
	wantCommands(t, m, `"EVALSHA" "SHA" "2" "n" `+Quoted(channel, 0, 30000, Alice))
	WantHash(t, client, "n", map[string]string{}, -2)
	wantMessage(t, messages, channel, "0")

	if res := Must[backend.ReleaseResult](t)(
		s.Release(ctx, Release(Alice))); res.Outcome != backend.NotHeld {
		t.Errorf("release of none: %v", res.Outcome)
	}

	Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Bob)))
	m.Commands()
	Must[backend.LookResult](t)(s.Look(ctx, backend.LookRequest{Name: "n", Owner: Bob}))
	wantCommands(t, m, Quoted("EXISTS", "n"), Quoted("HGET", "n", Bob), Quoted("PTTL", "n"))

	Must[backend.ForceReleaseResult](t)(s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"}))
	got := m.Commands()
	if text := wantScriptCall(t, got, 2, "n", channel, 0); !strings.HasSuffix(text, goldenForce) {
		// the script begins by checking whether the key could be a lock
		t.Errorf("script\n%s\nwant at its end\n%s", text, goldenForce)
	}
	wantMessage(t, messages, channel, "0")
}

// Uncontended checks that a session locks and unlocks with two commands, once the server knows the
// scripts.
func Uncontended(t *testing.T, server *testservers.Server, s Session) {
	Free(t, s, "n")
	m := Watch(t, server.Addr)
	Free(t, s, "n")
	wantCommands(t, m,
		`"EVALSHA" "SHA" "1" "n" "30000" `+Quoted(Alice),
		`"EVALSHA" "SHA" "2" "n" `+Quoted("redisson_lock__channel:{n}", 0, 30000, Alice))
}

// RenewTogether checks that it takes only a few scripts to renew many holds, and that an error for
// one hold doesn't affect the others.
func RenewTogether(t *testing.T, server *testservers.Server, s Session) {
	ctx := t.Context()
	client := connect(t, server.Addr)
	const n = 250
	var reqs []backend.RenewRequest
	for i := range n {
		name := fmt.Sprint("lock:", i)
		Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
			Name: name, Owner: Alice, Lease: Lease,
		}))
		reqs = append(reqs, backend.RenewRequest{Name: name, Owner: Alice, Lease: 2 * Lease})
	}
	renew := func() (held [n]bool, errs [n]error) {
		var mu sync.Mutex
		s.RenewBatch(ctx, reqs, func(i int, res backend.RenewResult, err error) {
			mu.Lock()
			defer mu.Unlock()
			held[i], errs[i] = res.Held, err
		})
		return held, errs
	}
	renew() // makes the scripts known to the server
	m := Watch(t, server.Addr)
	renew()
	if got := m.Commands(); len(got) != 3 {
		t.Errorf("renewed %d holds with %d commands", n, len(got))
	}
	for _, req := range reqs {
		if ttl := client.PTTL(ctx, req.Name).Val(); ttl <= Lease || ttl > 2*Lease {
			t.Fatalf("%s was renewed for %v", req.Name, ttl)
		}
	}

	// Another owner holds one lock, one lock is gone, one key isn't a lock, and one request has a
	// different lease.
	reqs[10].Owner = Bob
	client.Del(ctx, reqs[110].Name)
	client.Del(ctx, reqs[120].Name)
	client.Set(ctx, reqs[120].Name, "no lock", 0)
	reqs[130].Lease = Lease
	held, errs := renew()
	for i, req := range reqs {
		switch {
		case i == 120:
			WantKind(t, errs[i], backend.Refused)
		case errs[i] != nil:
			t.Errorf("%s: %v", req.Name, errs[i])
		case held[i] != (i != 10 && i != 110):
			t.Errorf("%s: held: %v", req.Name, held[i])
		}
	}
	if ttl := client.PTTL(ctx, reqs[130].Name).Val(); ttl > Lease {
		t.Errorf("%s was renewed for %v", reqs[130].Name, ttl)
	}
}

// Braces checks that a name with braces is kept as is, and that its channel gets no additional
// braces.
func Braces(t *testing.T, server *testservers.Server, s Session) {
	ctx := t.Context()
	client := connect(t, server.Addr)
	for _, name := range []string{"{a}b", "a{b", "{}x"} {
		channel := "redisson_lock__channel:" + name
		messages := listen(t, client, channel)
		Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
			Name: name, Owner: Alice, Lease: Lease,
		}))
		WantHash(t, client, name, map[string]string{Alice: "1"}, Lease)
		Must[backend.ReleaseResult](t)(s.Release(ctx, backend.ReleaseRequest{
			Name: name, Owner: Alice, Lease: Lease,
		}))
		wantMessage(t, messages, channel, "0")
	}
}

// wantScript checks the two commands that a Monitor shows if the server doesn't know a script yet.
// The first is an EVALSHA. The second is an EVAL of the golden script, with the hash and the
// arguments of the first.
func wantScript(t *testing.T, got []string, golden string, args ...any) {
	t.Helper()
	if text := wantScriptCall(t, got, args...); text != golden {
		t.Errorf("script\n%s\nwant\n%s", text, golden)
	}
}

// wantScriptCall checks the two commands that call a script if the server doesn't know it yet: an
// EVALSHA and an EVAL. It returns the script.
func wantScriptCall(t *testing.T, got []string, args ...any) (plain string) {
	t.Helper()
	if len(got) != 2 {
		t.Fatalf("commands %q, want an EVALSHA and an EVAL", got)
	}
	tail := " " + Quoted(args...)
	text, ok := strings.CutSuffix(got[1], tail)
	if !ok {
		t.Fatalf("command %s, want the arguments %s", got[1], tail)
	}
	text, ok = strings.CutPrefix(text, `"EVAL" "`)
	if !ok {
		t.Fatalf("command %s, want an EVAL", got[1])
	}
	text = strings.ReplaceAll(strings.TrimSuffix(text, `"`), `\n`, "\n")
	sum := sha1.Sum([]byte(text))
	if want := Quoted("EVALSHA", hex.EncodeToString(sum[:])) + tail; got[0] != want {
		t.Errorf("command %s, want %s", got[0], want)
	}
	return strings.Join(strings.Fields(text), " ")
}

// wantCommands compares the commands with those in want. In want, SHA stands for any hash. The
// scripts with which waiters occasionally look for a lock's holder are ignored.
func wantCommands(t *testing.T, m *Monitor, want ...string) {
	t.Helper()
	got := slices.DeleteFunc(m.Commands(), func(cmd string) bool {
		return strings.HasPrefix(cmd, `"EVAL"`) &&
			(strings.Contains(cmd, "hkeys") || strings.Contains(cmd, "'zrange', KEYS[1], 0, 9"))
	})
	for i := range got {
		if f := strings.Fields(got[i]); f[0] == `"EVALSHA"` && len(f[1]) == 42 {
			got[i] = strings.Replace(got[i], f[1], `"SHA"`, 1)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("commands\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func connect(t *testing.T, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return client
}

func listen(t *testing.T, client *redis.Client, channel string) *redis.PubSub {
	t.Helper()
	sub := client.Subscribe(t.Context(), channel)
	t.Cleanup(func() { sub.Close() })
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	return sub
}

func wantMessage(t *testing.T, sub *redis.PubSub, channel, payload string) {
	t.Helper()
	msg, err := sub.ReceiveTimeout(t.Context(), testservers.Patience)
	if m, ok := msg.(*redis.Message); err != nil || !ok || m.Channel != channel ||
		m.Payload != payload {
		t.Errorf("received %v, %v; want %q on %q", msg, err, payload, channel)
	}
}

package valkeybackend_test

import (
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/testservers"
)

// The scripts as Redisson's documentation shows them, without white space that has no meaning. They
// are written out here again because the files could be changed by mistake.
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

// wantScript compares two commands as MONITOR shows them: first an EVALSHA, which the server has not
// known, then an EVAL of the golden script with the same arguments, under the same name.
func wantScript(t *testing.T, got []string, golden string, args ...any) {
	t.Helper()
	if len(got) != 2 {
		t.Fatalf("commands %q, want an EVALSHA and an EVAL", got)
	}
	tail := " " + quoted(args...)
	text, ok := strings.CutSuffix(got[1], tail)
	if !ok {
		t.Fatalf("command %s, want the arguments %s", got[1], tail)
	}
	text, ok = strings.CutPrefix(text, `"EVAL" "`)
	if !ok {
		t.Fatalf("command %s, want an EVAL", got[1])
	}
	text = strings.ReplaceAll(strings.TrimSuffix(text, `"`), `\n`, "\n")
	if plain := strings.Join(strings.Fields(text), " "); plain != golden {
		t.Errorf("script\n%s\nwant\n%s", plain, golden)
	}
	sum := sha1.Sum([]byte(text))
	if want := quoted("EVALSHA", hex.EncodeToString(sum[:])) + tail; got[0] != want {
		t.Errorf("command %s, want %s", got[0], want)
	}
}

func TestWire(t *testing.T) {
	onServers(t, testWire)
}

func testWire(t *testing.T, server *testservers.Server) {
	const channel = "redisson_lock__channel:{n}"
	ctx := t.Context()
	admin := admin(t, server.Addr)
	s := open(t, connect(t, server.Addr))
	messages := listen(t, admin, channel)
	m := watch(t, server.Addr)

	must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
	wantScript(t, m.commands(), goldenAcquire, 1, "n", 30000, alice)
	wantHash(t, admin, "n", map[string]string{alice: "1"}, lease)
	m.commands()

	req := reenter(alice)
	req.Lease = 10 * time.Second
	if res := must[backend.AcquireResult](t)(s.Acquire(ctx, req)); !res.Acquired || res.Count != 2 {
		t.Errorf("re-entry: %+v, want the count 2", res)
	}
	wantCommands(t, m, `"EVALSHA" "SHA" "1" "n" "10000" `+quoted(alice), quoted("HGET", "n", alice))
	wantHash(t, admin, "n", map[string]string{alice: "2"}, 10*time.Second)

	m.commands()
	res := must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(bob)))
	if res.Acquired || res.Remaining <= 0 || res.Remaining > 10*time.Second {
		t.Errorf("the second's attempt: %+v, want refused for up to 10 s", res)
	}
	wantCommands(t, m, `"EVALSHA" "SHA" "1" "n" "30000" `+quoted(bob))

	must[backend.RenewResult](t)(s.Renew(ctx, backend.RenewRequest{Name: "n", Owner: alice, Lease: 20 * time.Second}))
	wantScript(t, m.commands(), goldenRenew, 1, "n", 20000, alice)
	wantHash(t, admin, "n", map[string]string{alice: "2"}, 20*time.Second)

	m.commands()
	if res := must[backend.ReleaseResult](t)(s.Release(ctx, release(alice))); res.Outcome != backend.Left {
		t.Errorf("release of one of two: %v", res.Outcome)
	}
	wantScript(t, m.commands(), goldenRelease, 2, "n", channel, 0, 30000, alice)
	wantHash(t, admin, "n", map[string]string{alice: "1"}, lease)

	m.commands()
	if res := must[backend.ReleaseResult](t)(s.Release(ctx, release(alice))); res.Outcome != backend.Freed {
		t.Errorf("release of the last: %v", res.Outcome)
	}
	wantCommands(t, m, `"EVALSHA" "SHA" "2" "n" `+quoted(channel, 0, 30000, alice))
	wantHash(t, admin, "n", map[string]string{}, -2)
	wantMessage(t, messages, channel, "0")

	if res := must[backend.ReleaseResult](t)(s.Release(ctx, release(alice))); res.Outcome != backend.NotHeld {
		t.Errorf("release of none: %v", res.Outcome)
	}

	must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(bob)))
	m.commands()
	must[backend.LookResult](t)(s.Look(ctx, backend.LookRequest{Name: "n", Owner: bob}))
	wantCommands(t, m, quoted("EXISTS", "n"), quoted("HGET", "n", bob), quoted("PTTL", "n"))

	must[backend.ForceReleaseResult](t)(s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"}))
	got := m.commands()
	if len(got) == 0 || got[0] != quoted("HLEN", "n") {
		t.Fatalf("commands %q, want HLEN n first", got)
	}
	wantScript(t, got[1:], goldenForce, 2, "n", channel, 0)
	wantMessage(t, messages, channel, "0")
}

// A name that has braces keeps them, and its channel gets none.
func TestWireBraces(t *testing.T) {
	ctx := t.Context()
	server := testservers.Valkey(t)
	admin := admin(t, server.Addr)
	s := open(t, connect(t, server.Addr))
	for _, name := range []string{"{a}b", "a{b", "{}x"} {
		channel := "redisson_lock__channel:" + name
		messages := listen(t, admin, channel)
		must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{Name: name, Owner: alice, Lease: lease}))
		wantHash(t, admin, name, map[string]string{alice: "1"}, lease)
		must[backend.ReleaseResult](t)(s.Release(ctx, backend.ReleaseRequest{Name: name, Owner: alice, Lease: lease}))
		wantMessage(t, messages, channel, "0")
	}
}

// wantCommands compares commands, where SHA stands for any hash.
func wantCommands(t *testing.T, m *monitor, want ...string) {
	t.Helper()
	got := m.commands()
	for i := range got {
		if f := strings.Fields(got[i]); f[0] == `"EVALSHA"` && len(f[1]) == 42 {
			got[i] = strings.Replace(got[i], f[1], `"SHA"`, 1)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("commands\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
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
	if m, ok := msg.(*redis.Message); err != nil || !ok || m.Channel != channel || m.Payload != payload {
		t.Errorf("received %v, %v; want %q on %q", msg, err, payload, channel)
	}
}

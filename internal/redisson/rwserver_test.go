package redisson

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// realServers are those that can become replicas and run out of memory.
func realServers(t *testing.T, test func(t *testing.T, s *store)) {
	for _, name := range []string{"redis", "valkey"} {
		t.Run(name, func(t *testing.T) { test(t, connect(t, servers[name](t))) })
	}
}

// A server that was a master a moment ago knows nothing of what is locked at the one that is now.
// Its no is worth nothing, and it gives none.
func TestRWOnAReplica(t *testing.T) {
	t.Parallel()
	for what, is := range map[string]string{
		"of nothing":        "",
		"of others reading": "read B 10 = count 1",
		"of one writing":    "write B 10 = count 1\nread B 10 = count 1",
	} {
		t.Run(what, func(t *testing.T) {
			realServers(t, func(t *testing.T, s *store) {
				s.play(is)
				s.do("replicaof", "127.0.0.1", strconv.Itoa(testservers.FreePort(t)))
				for _, step := range []string{"unread A", "unwrite A 10", "reread A 10",
					"rewrite A 10", "noreads", "nowrites"} {
					if got := s.take(parseStep(step)); !strings.HasPrefix(got,
						fmt.Sprintf("kind %d: READONLY", backend.Retry)) {
						t.Errorf("%s = %s", step, got)
					}
				}
			})
		})
	}
}

// A server whose memory is full lets nobody in. Holders can still renew and release.
func TestRWWithoutMemory(t *testing.T) {
	t.Parallel()
	oom := fmt.Sprintf("kind %d: the server is out of memory", backend.Retry)
	for name, c := range map[string]struct{ before, then string }{
		"nobody gets in": {"", "read A 10 = OOM\nwrite A 10 = OOM\nnumber A 10 = OOM\nstate"},
		"no second reader": {"read B 10 = count 1", `
			read A 10 = OOM
			read B 20 = count 1
			state = n[B:1 mode:read] 20, {n}:B:rwlock_timeout:1 20
			write A 10 0 5 = OOM
			write A 10 = wait 20
			unread B = freed
			state`},
		"a late reader": {`
			read B 90 = count 1
			read A 10 = count 1
			pass 20`, `
			reread A 10 = lost
			unread A = not held
			state = n[B:1 mode:read] 70, {n}:B:rwlock_timeout:1 70
			unread B = freed
			state`},
		"a writer": {`
			write A 30 = count 1
			write A 30 = count 2
			read A 10 = count 1`, `
			write A 30 = OOM
			rewrite A 40 = held
			unwrite A 10 = holds left
			unwrite A 10 = freed
			state = n[A:1 mode:read] 10, {n}:A:rwlock_timeout:1 10
			published = redisson_rwlock:{n} 1`},
		"giving up": {"read B 10 = count 1\nwrite A 10 0 5 = wait 10", `
			unwrite A 10 = not held
			published = redisson_rwlock:{n} 1
			noreads = released
			state`},
		"a writer is forced": {"write B 10 = count 1", "nowrites = released\nstate"},
	} {
		t.Run(name, func(t *testing.T) {
			realServers(t, func(t *testing.T, s *store) {
				s.play(c.before)
				s.published()
				s.do("config", "set", "maxmemory", "1")
				for line := range strings.Lines(c.then) {
					if step, full := strings.CutSuffix(strings.TrimSpace(line), " = OOM"); !full {
						s.play(line)
					} else if got := s.take(parseStep(step)); !strings.HasPrefix(got, oom) {
						t.Errorf("%s = %s", step, got)
					}
				}
			})
		})
	}
}

// In a cluster all that belongs to a lock is in one slot, whatever braces its name has, and what is
// published there is heard there.
func TestRWInACluster(t *testing.T) {
	t.Parallel()
	for server, start := range map[string]func(testservers.TB, int) []*testservers.Server{
		"redis": testservers.RedisCluster, "valkey": testservers.ValkeyCluster,
	} {
		t.Run(server, func(t *testing.T) {
			ctx := t.Context()
			client := redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{start(t, 3)[0].Addr}, MaxRedirects: -1,
			})
			defer client.Close()
			run := func(c Call) any {
				t.Helper()
				args := make([]any, len(c.Args))
				for i, arg := range c.Args {
					args[i] = arg
				}
				reply, err := client.Eval(ctx, c.Script.Text, c.Keys, args...).Result()
				if err != nil && err != redis.Nil {
					t.Fatal(err)
				}
				return reply
			}
			d := Dialect{Sharded: true}
			for _, name := range []string{"n", "{a}b", "a{b}c", "{a}{b}", "sp ace"} {
				messages := client.SSubscribe(ctx, RWChannel(name))
				if _, err := messages.Receive(ctx); err != nil {
					t.Fatal(err)
				}
				acquire := func(owner string) backend.AcquireRequest {
					return backend.AcquireRequest{
						Name: name, Owner: owner, Lease: unit, Place: unit,
					}
				}
				release := func(owner string) backend.ReleaseRequest {
					return backend.ReleaseRequest{Name: name, Owner: owner, Lease: unit}
				}
				run(AcquireRead(acquire("A{x}")))
				run(AcquireRead(acquire("B")))
				run(AcquireWrite(acquire("W")))
				run(RenewReads([]backend.RenewRequest{{Name: name, Owner: "B", Lease: unit}}))
				run(d.ReleaseRead(release("A{x}")))
				if left := client.PTTL(ctx, name).Val(); left <= 0 {
					t.Errorf("%q: B reads, and the lock lasts for %v", name, left)
				}
				run(d.ReleaseRead(release("B")))
				run(AcquireWrite(acquire("W")))
				run(RenewWrites([]backend.RenewRequest{{Name: name, Owner: "W", Lease: unit}}))
				run(LookWrite(backend.LookRequest{Name: name, Owner: "W"}))
				run(d.ReleaseWrite(release("W")))
				run(AcquireRead(acquire("A")))
				run(d.ForceReleaseRead(backend.ForceReleaseRequest{Name: name}))
				run(AcquireFenced(backend.AcquireRequest{Name: name, Owner: "F", Lease: unit}))
				for i, want := range []string{"0", "1", "0"} {
					m, err := messages.ReceiveTimeout(ctx, testservers.Patience)
					if got, ok := m.(*redis.Message); !ok || got.Payload != want {
						t.Fatalf("%q: message %d is %v, %v; want %s", name, i, m, err, want)
					}
				}
				messages.Close()
				client.Del(ctx, name)
			}
		})
	}
}

// Up to so many holds are renewed at once, each as by itself.
func TestRenewManyRW(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		for what, x := range map[string]struct {
			acquire func(backend.AcquireRequest) Call
			renew   func([]backend.RenewRequest) Call
		}{"reads": {AcquireRead, RenewReads}, "writes": {AcquireWrite, RenewWrites}} {
			s.do("flushall")
			var reqs []backend.RenewRequest
			for i := range maxTogether {
				req := backend.RenewRequest{
					Name: fmt.Sprint("n", i), Owner: fmt.Sprint("o", i), Lease: 20 * unit,
				}
				reqs = append(reqs, req)
				if i%3 == 0 {
					continue // isn't held
				}
				if i%3 == 1 {
					req.Lease = 30 * unit // lasts longer
				}
				if _, err := s.run(x.acquire(backend.AcquireRequest{
					Name: req.Name, Owner: req.Owner, Lease: req.Lease / 2,
				})); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.run(x.acquire(backend.AcquireRequest{
				Name: "n1", Owner: "o1", Lease: 90 * unit,
			})); err != nil {
				t.Fatal(err)
			}
			reply, err := s.run(x.renew(reqs))
			if err != nil {
				t.Fatal(err)
			}
			results, err := ParseRenewals(reply, len(reqs))
			if err != nil {
				t.Fatal(err)
			}
			for i, res := range results {
				// as of a key that isn't there
				want := map[bool]string{true: "20", false: "for ever"}[i%3 > 0]
				if i == 1 {
					want = "90"
				}
				if got := units(s.do("pttl", reqs[i].Name).(int64)); res.Held != (i%3 > 0) ||
					got != want {
					t.Errorf("%s: %d is %+v, for %s", what, i, res, got)
				}
			}
			// The error about a key of another kind doesn't say which request it is about: each
			// must be sent alone.
			s.do("set", "n50", "text")
			if got := say(s, x.renew(reqs), parseRenewal); got != "conflict" {
				t.Errorf("%s, one of which is text: %s", what, got)
			}
		}
	})
}

func TestRWDialect(t *testing.T) {
	release, force := backend.ReleaseRequest{Name: "n", Owner: "o", Lease: time.Second},
		backend.ForceReleaseRequest{Name: "n"}
	for _, d := range []Dialect{{}, {Sharded: true}} {
		for _, c := range []Call{d.ReleaseRead(release), d.ReleaseWrite(release),
			d.ForceReleaseRead(force), d.ForceReleaseWrite(force)} {
			if plain := strings.Contains(c.Script.Text, "'publish'"); plain == d.Sharded ||
				strings.Contains(c.Script.Text, "'spublish'") != d.Sharded {
				t.Errorf("%+v: script %s", d, c.Script.Text)
			}
			if c.Keys[1] != "redisson_rwlock:{n}" {
				t.Errorf("%+v: keys %q", d, c.Keys)
			}
		}
	}
}

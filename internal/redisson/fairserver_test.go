package redisson

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A server that was a master a moment ago gives no answer that could end a wait or a hold.
func TestFairOnAReplica(t *testing.T) {
	for what, is := range map[string]string{
		"of nothing":                 "",
		"of one who waits":           "lock B:1 10 = count 1\nlock A:1 10 3 = wait 10",
		"of one whose place is over": "lock B:1 10 = count 1\nlock A:1 10 3 = wait 10\npass 4",
	} {
		t.Run(what, func(t *testing.T) {
			realServers(t, func(t *testing.T, s *store) {
				l := newLine(s)
				l.play(is)
				s.do("replicaof", "127.0.0.1", strconv.Itoa(testservers.FreePort(t)))
				for _, step := range []string{"unlock A:1 10", "renew A:1 10", "force",
					"keep A:1 3"} {
					if got := l.take(parseLineStep(step)); !strings.Contains(got, "READONLY") {
						t.Errorf("%s = %s", step, got)
					}
				}
			})
		})
	}
}

// A server whose memory is full lets nobody in, and nobody stand in line. Holders can still renew
// the lock, release it, and pass it on.
func TestFairWithoutMemory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, then string }{
		"nobody gets in": {"", "lock A:1 10 = OOM\nlock A:1 10 3 = OOM\nkeep A:1 3 = OOM\nstate"},
		"nobody stands in line": {"lock B:1 10 = count 1", `
			lock A:1 10 3 = OOM
			lock A:1 10 = wait 10
			lock B:1 20 = count 1
			relock B:1 20 = OOM
			state = [B:1:fair:1] 20`},
		"who is inside": {"lock A:1 30 = count 1\nrelock A:1 30 = count 2\nlock B:1 30 3 = wait " +
			"30\nlock C:1 30 3 = wait 30", `
			renew A:1 40 = held
			keep B:1 3 = OOM
			unlock A:1 10 = holds left
			unlock C:1 10 = not held
			unlock A:1 10 = freed
			published = gives B:1
			unlock B:1 10 = freed
			state`},
		"the places were lost": {"lock A:1 30 = count 1\nlock B:1 30 3 = wait 30\n:del " +
			"distsync_fair_places:{n}", `
			unlock A:1 10 = freed
			published = gives B:1`},
		"who comes for another who is first": {"lock A:1 5 = count 1\nlock B:1 30 9 = wait " +
			"5\npass 5", `
			lock C:1 30 = OOM
			state = B:1:4+5
			force = was free
			published = gives B:1`},
	} {
		t.Run(name, func(t *testing.T) {
			realServers(t, func(t *testing.T, s *store) {
				l := newLine(s)
				l.play(c.before)
				l.published()
				s.do("config", "set", "maxmemory", "1")
				for line := range strings.Lines(c.then) {
					if step, full := strings.CutSuffix(strings.TrimSpace(line), " = OOM"); !full {
						l.play(line)
					} else if got := l.take(parseLineStep(step)); !strings.Contains(got,
						"the server is out of memory") {
						t.Errorf("%s = %s", step, got)
					}
				}
			})
		})
	}
}

// In a cluster all that belongs to a lock is in one slot, whatever braces its name has, and what is
// published there is heard there.
func TestFairInACluster(t *testing.T) {
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
				messages := client.SSubscribe(ctx, d.grants(name)+"id}{")
				if _, err := messages.Receive(ctx); err != nil {
					t.Fatal(err)
				}
				turns := client.SSubscribe(ctx, turnChannel(name, "java"))
				if _, err := turns.Receive(ctx); err != nil {
					t.Fatal(err)
				}
				one, two := inLine("id}{:1"), inLine("id}{:2")
				acquire := backend.AcquireRequest{Name: name, Owner: one, Lease: unit}
				run(d.AcquireFair(acquire))
				acquire.Owner, acquire.Place = two, unit
				run(d.AcquireFair(acquire))
				run(d.KeepPlaces(backend.PlacesRequest{Name: name, Owners: []string{one, two},
					Place: unit})[0])
				run(d.RenewFair([]backend.RenewRequest{{Name: name, Owner: one, Lease: unit}}))
				run(d.ReleaseFair(backend.ReleaseRequest{Name: name, Owner: one, Lease: unit}))
				m, err := messages.ReceiveTimeout(ctx, testservers.Patience)
				if got, ok := m.(*redis.Message); !ok || !strings.HasSuffix(got.Payload, name+two) {
					t.Fatalf("%q: %v, %v", name, m, err)
				}
				keys := fairKeys(name)
				client.RPush(ctx, keys[1], "java")
				client.ZAdd(ctx, keys[2], redis.Z{Score: 1e15, Member: "java"})
				run(d.ForceReleaseFair(backend.ForceReleaseRequest{Name: name}))
				m, err = turns.ReceiveTimeout(ctx, testservers.Patience)
				if got, ok := m.(*redis.Message); !ok || got.Payload != "0" {
					t.Fatalf("%q: %v, %v", name, m, err)
				}
				messages.Close()
				turns.Close()
			}
		})
	}
}

// Up to so many holds are renewed at once, each as by itself.
func TestRenewManyFair(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *store) {
		var reqs []backend.RenewRequest
		for i := range maxTogether {
			req := backend.RenewRequest{
				Name: fmt.Sprint("n", i), Owner: inLine(fmt.Sprint("o:", i)), Lease: 20 * unit,
			}
			reqs = append(reqs, req)
			if i%3 == 0 {
				continue // isn't held
			}
			if _, err := s.run(Dialect{}.AcquireFair(backend.AcquireRequest{
				Name: req.Name, Owner: req.Owner, Lease: 10 * unit,
			})); err != nil {
				t.Fatal(err)
			}
		}
		reply, err := s.run(Dialect{}.RenewFair(reqs))
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
			if got := units(s.do("pttl", reqs[i].Name).(int64)); res.Held != (i%3 > 0) ||
				got != want {
				t.Errorf("%d is %+v, for %s", i, res, got)
			}
		}
		s.do("set", "n50", "text")
		if got := say(s, Dialect{}.RenewFair(reqs), parseRenewal); got != "conflict" {
			t.Errorf("many, one of which is text: %s", got)
		}
	})
}

func TestFairDialect(t *testing.T) {
	for _, d := range []Dialect{{}, {Sharded: true}} {
		want := map[bool]string{false: "distsync_fair_grants:",
			true: "distsync_fair_grants:{n}:"}[d.Sharded]
		for _, c := range []Call{
			d.AcquireFair(backend.AcquireRequest{
				Name: "n", Owner: "o:fair", Lease: time.Second, Place: time.Microsecond,
			}),
			d.KeepPlaces(backend.PlacesRequest{Name: "n", Owners: []string{"o:fair"},
				Place: time.Second})[0],
			d.ReleaseFair(backend.ReleaseRequest{Name: "n", Owner: "o:fair", Lease: time.Second}),
			d.RenewFair([]backend.RenewRequest{{Name: "n", Owner: "o:fair", Lease: time.Second}}),
			d.ForceReleaseFair(backend.ForceReleaseRequest{Name: "n"}),
		} {
			if plain := strings.Contains(c.Script.Text, "'publish'"); plain == d.Sharded ||
				strings.Contains(c.Script.Text, "'spublish'") != d.Sharded {
				t.Errorf("%+v: script %s", d, c.Script.Text)
			}
			if !slices.Equal(c.Keys, []string{"n", "redisson_lock_queue:{n}",
				"redisson_lock_timeout:{n}", "distsync_fair_places:{n}",
				"redisson_lock__channel:{n}"}) {
				t.Errorf("%+v: keys %q", d, c.Keys)
			}
			if !slices.Contains(c.Args[:min(2, len(c.Args))], want) {
				t.Errorf("%+v: arguments %q", d, c.Args)
			}
		}
	}
	if got := (Dialect{}).AcquireFair(backend.AcquireRequest{Place: time.Microsecond}).
		Args[3]; got != "1" {
		t.Errorf("a short place is %s", got)
	}
}

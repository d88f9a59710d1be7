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

// A server that was a master a moment ago knows nothing of what is out at the one that is now. Its
// no is worth nothing, and it gives none.
func TestPermitsOnAReplica(t *testing.T) {
	realServers(t, func(t *testing.T, plain *store) {
		s := semaphore{plain}
		for _, is := range []string{"", "get B 1 10 3 = count 1", "put B 1 = freed"} {
			s.play(is)
			s.do("replicaof", "127.0.0.1", strconv.Itoa(testservers.FreePort(t)))
			for _, step := range []string{"get A 1 10 3", "put A 1", "renew A 1 10", "all"} {
				if got := s.take(parsePermitStep(step)); !strings.HasPrefix(got,
					fmt.Sprintf("kind %d: READONLY", backend.Retry)) {
					t.Errorf("%q, %s = %s", is, step, got)
				}
			}
			s.do("replicaof", "no", "one")
		}
	})
}

// A server whose memory is full lets nobody in. Holders can still renew and release.
func TestPermitsWithoutMemory(t *testing.T) {
	oom := fmt.Sprintf("kind %d: the server is out of memory", backend.Retry)
	realServers(t, func(t *testing.T, plain *store) {
		s := semaphore{plain}
		s.play(`
			get A 2 10 5 = count 2
			get B 1 20 5 = count 1
			get D 1 5 5 = count 1
			published = 3
			pass 5`)
		s.do("config", "set", "maxmemory", "1")
		refused := func(step string) {
			t.Helper()
			before := s.state()
			if got := s.take(parsePermitStep(step)); !strings.HasPrefix(got, oom) ||
				s.state() != before {
				t.Errorf("%s = %s, and leaves %s, where there was %s", step, got, s.state(), before)
			}
		}
		refused("get C 1 10 5")
		refused("get A 2 10 5")
		s.play(`
			published
			get C 5 10 5 = wait 5
			published = 2
			renew A 2 30 = held
			renew C 1 30 = lost
			put B 1 = freed
			renew A 1 10 = lost
			state = 5 for ever
			published = 3, 5`)
		refused("get C 1 10 5")
		s.do("config", "set", "maxmemory", "0")
		s.play("get A 2 10 5 = count 2")
		s.do("config", "set", "maxmemory", "1")
		s.play(`
			all = released
			state = 5 for ever`)
		s.do("flushall")
		refused("get A 1 10 5")
	})
}

// In a cluster all that belongs to a semaphore is in one slot, whatever braces its name has. A
// message that is published there is heard there.
func TestPermitsInACluster(t *testing.T) {
	t.Parallel()
	for server, start := range map[string]func(testservers.TB, int) []*testservers.Server{
		"redis": testservers.RedisCluster, "valkey": testservers.ValkeyCluster,
	} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			client := redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{start(t, 3)[0].Addr}, MaxRedirects: -1,
			})
			defer client.Close()
			run := func(c Call) {
				t.Helper()
				args := make([]any, len(c.Args))
				for i, arg := range c.Args {
					args[i] = arg
				}
				if err := client.Eval(ctx, c.Script.Text, c.Keys, args...).Err(); err != nil &&
					err != redis.Nil {
					t.Fatal(err)
				}
			}
			d, owner := Dialect{Sharded: true}, holder("A")
			for _, name := range []string{"n", "{a}b", "a{b}c", "{a}{b}", "sp ace"} {
				messages := client.SSubscribe(ctx, PermitsChannel(name))
				if _, err := messages.Receive(ctx); err != nil {
					t.Fatal(err)
				}
				acquire := backend.AcquireRequest{
					Name: name, Owner: owner, Lease: unit, Permits: 2, Limit: 3,
				}
				run(d.AcquirePermits(acquire))
				run(d.RenewPermits([]backend.RenewRequest{{
					Name: name, Owner: owner, Lease: unit, Permits: 2,
				}}))
				run(LookPermits(backend.LookRequest{Name: name, Owner: owner, Permits: 2}))
				run(d.ReleasePermits(backend.ReleaseRequest{Name: name, Owner: owner, Permits: 2}))
				acquire.Limit = 4
				run(d.AcquirePermits(acquire))
				run(d.RenewPermits([]backend.RenewRequest{{
					Name: name, Owner: owner, Lease: unit, Permits: 1,
				}}))
				run(d.AcquirePermits(acquire))
				run(d.ForceReleasePermits(backend.ForceReleaseRequest{Name: name}))
				for i, want := range []string{"1", "3", "2", "4", "4"} {
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

// Up to so many holds are renewed at once, each as by itself, also those of one semaphore.
func TestRenewManyPermits(t *testing.T) {
	semaphores(t, func(t *testing.T, s semaphore) {
		var reqs []backend.RenewRequest
		for i := range maxTogether {
			req := backend.RenewRequest{
				Name: fmt.Sprint("n", i/10), Owner: holder(fmt.Sprint(i)), Lease: 20 * unit,
				Permits: 1 + i%4,
			}
			reqs = append(reqs, req)
			if i%4 > 0 {
				acquire := backend.AcquireRequest{
					Name: req.Name, Owner: req.Owner, Lease: 10 * unit, Permits: req.Permits,
					Limit: 100,
				}
				if _, err := s.run(s.dialect.AcquirePermits(acquire)); err != nil {
					t.Fatal(err)
				}
			}
		}
		reqs[7].Permits++ // has another number
		reply, err := s.run(s.dialect.RenewPermits(reqs))
		if err != nil {
			t.Fatal(err)
		}
		results, err := ParseRenewals(reply, len(reqs))
		if err != nil {
			t.Fatal(err)
		}
		for i, res := range results {
			want := i%4 > 0 && i != 7
			look := backend.LookRequest{
				Name: reqs[i].Name, Owner: reqs[i].Owner, Permits: reqs[i].Permits, Limit: 100,
			}
			reply, err := s.run(LookPermits(look))
			if err != nil {
				t.Fatal(err)
			}
			got, err := ParseLookPermits(look, reply)
			if err != nil {
				t.Fatal(err)
			}
			if res.Held != want || (got.Count == look.Permits) != want || !want && got.Count > 0 ||
				got.Remaining <= 19*unit {
				t.Errorf("%d is %+v, and %+v", i, res, got)
			}
		}
		// The error about a key of another kind doesn't say which request it is about: each must be
		// sent alone.
		s.do("set", "n5", "text")
		if got := say(s.store, s.dialect.RenewPermits(reqs), parseRenewal); got != "conflict" {
			t.Errorf("one of which is text: %s", got)
		}
	})
}

// A script renews no more than so many permits, unless one hold has more.
func TestRenewFewWithManyPermits(t *testing.T) {
	b := &batch{}
	var chosen []int
	for i := range 300 {
		b.reqs = append(b.reqs, backend.RenewRequest{
			Kind: backend.Permits, Name: "n", Lease: time.Second, Permits: 1 + i%150,
		})
		chosen = append(chosen, i)
	}
	seen := 0
	for _, group := range b.alike(chosen) {
		sum := 0
		for _, req := range b.pick(group[:len(group)-1]) {
			sum += req.Permits
		}
		if seen += len(group); sum >= maxTogether {
			t.Errorf("%v have %d permits without the last", group, sum)
		}
	}
	if seen != len(chosen) {
		t.Errorf("%d of %d are renewed", seen, len(chosen))
	}
}

func TestPermitsDialect(t *testing.T) {
	for _, d := range []Dialect{{}, {Sharded: true}} {
		for what, c := range map[string]Call{
			"acquire": d.AcquirePermits(backend.AcquireRequest{
				Name: "n", Owner: "o", Lease: time.Second, Permits: 1,
			}),
			"release": d.ReleasePermits(backend.ReleaseRequest{Name: "n", Owner: "o", Permits: 1}),
			"renew": d.RenewPermits([]backend.RenewRequest{{
				Name: "n", Owner: "o", Lease: time.Second, Permits: 1,
			}}),
			"force": d.ForceReleasePermits(backend.ForceReleaseRequest{Name: "n"}),
		} {
			if plain := strings.Contains(c.Script.Text, "'publish'"); plain == d.Sharded ||
				strings.Contains(c.Script.Text, "'spublish'") != d.Sharded {
				t.Errorf("%+v, %s: script %s", d, what, c.Script.Text)
			}
			if fmt.Sprint(c.Keys) != "[n {n}:timeout redisson_sc:{n}]" {
				t.Errorf("%+v, %s: keys %q", d, what, c.Keys)
			}
		}
	}
}

// When something ends is a matter of whole milliseconds of the server's, no sooner than the lease
// says.
func TestPermitsEnd(t *testing.T) {
	t.Parallel()
	semaphores(t, func(t *testing.T, s semaphore) {
		const lease = 50 * time.Millisecond
		before := time.Now()
		if _, err := s.run(s.dialect.AcquirePermits(backend.AcquireRequest{
			Name: "n", Owner: holder("A"), Lease: lease, Permits: 1, Limit: 1,
		})); err != nil {
			t.Fatal(err)
		}
		ends := time.UnixMilli(int64(
			s.client.ZScore(t.Context(), ids("n"), holder("A")+"\xff\xff\xff\xff").Val()))
		if ends.Before(before.Add(lease)) || ends.After(time.Now().Add(lease+time.Millisecond)) {
			t.Errorf("it ends %v after it began", ends.Sub(before))
		}
		// However soon one looks, no more is left than was asked for.
		for range 200 {
			both := strings.Replace(permitsAcquireScript.Text, "return {count};",
				"return lasts(timeouts, -1, micros);", 1)
			left, err := s.eval(both, permitsKeys("n"), "50", holder("A"), "1", "1", "10000")
			if err != nil || left != int64(50) {
				t.Fatalf("just after it began %v ms are left, %v", left, err)
			}
		}
		testservers.Until(t, "it is over", func() bool {
			reply, err := s.run(s.dialect.AcquirePermits(backend.AcquireRequest{
				Name: "n", Owner: holder("B"), Lease: time.Second, Permits: 1, Limit: 1,
			}))
			if err != nil {
				t.Fatal(err)
			}
			res, err := ParsePermits(reply)
			if err != nil || !res.Acquired &&
				(res.Remaining < time.Millisecond || res.Remaining > lease) ||
				res.Acquired && time.Since(before) < lease {
				t.Fatal(res, time.Since(before), err)
			}
			return res.Acquired
		})
	})
}

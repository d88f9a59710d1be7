package redisbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

const (
	ample = 4 * time.Second       // for replicas that answer
	scant = 50 * time.Millisecond // for replicas that don't
)

func TestWithReplicasPanics(t *testing.T) {
	brief := func(o *redis.Options) { o.ReadTimeout = time.Second }
	unlimited := func(o *redis.Options) { o.ReadTimeout = -1 }
	for name, c := range map[string]struct {
		client redis.UniversalClient
		n      int
		d      time.Duration
		says   string
	}{
		"good":              {connect(t, "127.0.0.1:1"), 1, 5*time.Second - time.Millisecond, ""},
		"no limit":          {connect(t, "127.0.0.1:1", unlimited), 1, time.Hour, ""},
		"zero":              {connect(t, "127.0.0.1:1"), 0, time.Second, "0 replicas"},
		"negative":          {connect(t, "127.0.0.1:1"), -1, time.Second, "-1 replicas"},
		"no time":           {connect(t, "127.0.0.1:1"), 1, 0, "whole milliseconds"},
		"negative time":     {connect(t, "127.0.0.1:1"), 1, -time.Second, "whole milliseconds"},
		"no millisecond":    {connect(t, "127.0.0.1:1"), 1, time.Microsecond, "whole milliseconds"},
		"half milliseconds": {connect(t, "127.0.0.1:1"), 1, 1500 * time.Microsecond, "whole milliseconds"},
		"as long":           {connect(t, "127.0.0.1:1"), 1, 5 * time.Second, "ReadTimeout of 5s"},
		"longer":            {connect(t, "127.0.0.1:1", brief), 1, 2 * time.Second, "ReadTimeout of 1s"},
		"longer, cluster":   {connectCluster(t, nil), 1, 5 * time.Second, "ReadTimeout of 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				text, _ := recover().(string)
				if (c.says == "") != (text == "") || !strings.Contains(text, c.says) {
					t.Errorf("panic %q, want one that says %q", text, c.says)
				}
			}()
			redisbackend.New(c.client, redisbackend.WithReplicas(c.n, c.d))
		})
	}
}

// wantNotReplicated fails the test if err is not that of an acquisition that has too few replicas.
func wantNotReplicated(t *testing.T, err error, says string) {
	t.Helper()
	wantKind(t, err, backend.Unknown)
	if !errors.Is(err, redisbackend.ErrNotReplicated) || !strings.Contains(fmt.Sprint(err), says) {
		t.Errorf("error %v, want ErrNotReplicated that says %q", err, says)
	}
}

func TestWithReplicas(t *testing.T) {
	ctx := t.Context()
	master, slaves := testservers.RedisReplicated(t, 2)
	client := connect(t, master.Addr)
	both, scantBoth := redisbackend.WithReplicas(2, ample), redisbackend.WithReplicas(2, scant)

	t.Run("on the wire", func(t *testing.T) {
		s := open(t, client, both)
		for range 2 { // scripts that the server doesn't know yet, and then does
			must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
			must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
		}
		m := watch(t, master.Addr)
		want := []string{"evalsha", "wait", "evalsha", "hget", "wait", "evalsha", "wait", "evalsha", "evalsha"}
		must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
		if res := must[backend.AcquireResult](t)(s.Acquire(ctx, reenter(alice))); res.Count != 2 {
			t.Errorf("re-entry: %+v", res)
		}
		if res := must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(bob))); res.Acquired || res.Remaining <= 0 {
			t.Errorf("acquire by another: %+v", res)
		}
		must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
		must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
		commands := m.commands()
		ok := len(commands) == len(want)
		for i := range min(len(commands), len(want)) {
			ok = ok && strings.HasPrefix(commands[i], `"`+want[i]+`"`)
			if want[i] == "wait" && commands[i] != `"wait" "2" "4000"` {
				t.Errorf("command %s", commands[i])
			}
		}
		if !ok {
			t.Errorf("commands\n%s\nwant %q", strings.Join(commands, "\n"), want)
		}
	})

	t.Run("a script that is unknown counts once", func(t *testing.T) {
		client.FlushAll(ctx)
		client.ScriptFlush(ctx)
		s := open(t, client, both)
		if res := must[backend.AcquireResult](t)(s.Acquire(ctx, reenter(alice))); res.Count != 1 {
			t.Errorf("acquired %d times", res.Count)
		}
	})

	t.Run("what is held is on the replicas", func(t *testing.T) {
		s := open(t, client, both)
		for i := range 100 {
			client.FlushAll(ctx)
			must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
			for _, slave := range slaves {
				if n, err := testservers.Do(slave.Addr, "HGET", "n", alice); n != "1" {
					t.Fatalf("lock %d: a replica has %q, %v", i, n, err)
				}
			}
		}
	})

	t.Run("too few", func(t *testing.T) {
		client.FlushAll(ctx)
		slaves[0].Stop()
		defer slaves[0].Cont()
		one, s := open(t, client, redisbackend.WithReplicas(1, ample)), open(t, client, scantBoth)
		must[backend.AcquireResult](t)(one.Acquire(ctx, acquire(alice)))

		_, err := s.Acquire(ctx, acquire(alice))
		wantNotReplicated(t, err, "1 of 2")
		_, err = s.Acquire(ctx, reenter(alice))
		wantNotReplicated(t, err, "1 of 2")
		wantHash(t, client, "n", map[string]string{alice: "3"}, lease)

		// Who is refused needs no replica, and nor does anything else.
		if res := must[backend.AcquireResult](t)(s.Acquire(ctx, reenter(bob))); res.Acquired || res.Remaining <= 0 {
			t.Errorf("acquire by another: %+v", res)
		}
		if !must[backend.RenewResult](t)(s.Renew(ctx, renew(alice))).Held {
			t.Error("renew: lost")
		}
		must[backend.ReleaseResult](t)(s.Release(ctx, release(alice)))
	})

	t.Run("other errors", func(t *testing.T) {
		client.FlushAll(ctx)
		server := testservers.Redis(t)
		server.Do("ACL", "SETUSER", "some", "on", ">secret", "~*", "&*", "+@all", "-wait")
		admin := connect(t, server.Addr)
		s := open(t, connect(t, server.Addr, as("some")), scantBoth)
		_, err := s.Acquire(ctx, acquire(alice))
		wantNotReplicated(t, err, "NOPERM")
		if res := must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(bob))); res.Acquired {
			t.Error("acquired by another")
		}

		// What was not carried out is not about replicas.
		admin.FlushAll(ctx)
		admin.Set(ctx, "n", "precious", 0)
		_, err = open(t, admin, scantBoth).Acquire(ctx, acquire(alice))
		wantKind(t, err, backend.Refused)
		if errors.Is(err, redisbackend.ErrNotReplicated) || !errors.Is(err, backend.ErrConflict) {
			t.Errorf("acquire on a string: %v", err)
		}
		_, err = open(t, connect(t, slaves[0].Addr), both).Acquire(ctx, acquire(alice))
		wantKind(t, err, backend.Retry)

		// A reply that is lost: it was acquired, once.
		p := newProxy(t, master.Addr)
		s = open(t, connect(t, p.Addr().String()), both)
		must[backend.AcquireResult](t)(s.Acquire(ctx, acquire(alice)))
		p.deaf.Store(true)
		_, err = s.Acquire(ctx, acquire(alice))
		wantKind(t, err, backend.Unknown)
		testservers.Until(t, "it is carried out", func() bool { return client.HGet(ctx, "n", alice).Val() == "2" })
	})

	t.Run("locker", func(t *testing.T) {
		client.FlushAll(ctx)
		c := dlock.New(redisbackend.New(client, scantBoth))
		defer c.Close()
		slaves[0].Stop()
		ok, err := c.Locker("a").TryLock(ctx)
		if ok || !errors.Is(err, redisbackend.ErrNotReplicated) {
			t.Errorf("TryLock: %v, %v", ok, err)
		}
		// The context should end in a pause between two attempts: one that it cuts short says nothing.
		testservers.Until(t, "LockContext says that it is not replicated", func() bool {
			short, cancel := context.WithTimeout(ctx, 12*scant)
			defer cancel()
			err := c.Locker("b").LockContext(short)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("LockContext: %v", err)
			}
			return errors.Is(err, redisbackend.ErrNotReplicated)
		})
		testservers.Until(t, "they are taken back", func() bool { return client.DBSize(ctx).Val() == 0 })

		waits := make(chan error)
		go func() { waits <- c.Locker("c").LockContext(ctx) }()
		testservers.Until(t, "an attempt is made", func() bool { return client.DBSize(ctx).Val() == 1 })
		slaves[0].Cont()
		if err := <-waits; err != nil {
			t.Errorf("LockContext: %v", err)
		}
		if err := c.Locker("c").UnlockContext(ctx); !errors.Is(err, dlock.ErrNotHeld) {
			t.Errorf("UnlockContext by another Locker: %v", err)
		}
	})
}

func TestWithReplicasInCluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	masters := testservers.RedisCluster(t, 3)
	replicas := testservers.RedisClusterReplicas(t, masters)
	s := open(t, connectCluster(t, masters), redisbackend.WithReplicas(1, ample))
	try := func(name, owner string) (backend.AcquireResult, error) {
		return s.Acquire(ctx, backend.AcquireRequest{Name: name, Owner: owner, Lease: lease, Reentry: true})
	}
	for i := range 10 { // on all masters
		name := fmt.Sprint("name", i)
		if res := must[backend.AcquireResult](t)(try(name, alice)); res.Count != 1 {
			t.Errorf("%s: %+v", name, res)
		}
		if res := must[backend.AcquireResult](t)(try(name, bob)); res.Acquired {
			t.Errorf("%s: acquired by another", name)
		}
	}

	const name = "moving"
	from, to := owners(t, masters, name)
	scanty := open(t, connectCluster(t, masters), redisbackend.WithReplicas(2, scant))
	_, err := scanty.Acquire(ctx, backend.AcquireRequest{Name: name, Owner: bob, Lease: lease})
	wantNotReplicated(t, err, "1 of 2")
	must[backend.ReleaseResult](t)(s.Release(ctx, backend.ReleaseRequest{Name: name, Owner: bob, Lease: lease}))

	m := newMove(t, masters, name, from, to)
	m.finish()
	first := true
	testservers.Until(t, "it is acquired where the slot is now", func() bool {
		res, err := try(name, alice)
		if err != nil {
			wantKind(t, err, backend.Retry)
			first = false
			return false
		}
		return res.Acquired && res.Count == 1
	})
	if first {
		t.Error("the first attempt went to the right server: nothing is tested here")
	}

	// A failover: the client is told by nobody, and finds out.
	index := 0
	for i, master := range masters {
		if master == to {
			index = i
		}
	}
	to.Kill()
	replicas[index].Do("CLUSTER", "FAILOVER", "TAKEOVER")
	testservers.Until(t, "the new master is asked", func() bool {
		res, err := scanty.Acquire(ctx, backend.AcquireRequest{Name: name, Owner: bob, Lease: lease})
		if res.Acquired || errors.Is(err, redisbackend.ErrNotReplicated) {
			t.Error("the lock was lost in the failover")
		}
		return err == nil
	})
}

package wiretest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/redisson"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// wantNotReplicated fails the test unless err reports an acquisition that too few replicas
// acknowledged.
func wantNotReplicated(t testing.TB, err error, says string) {
	t.Helper()
	WantKind(t, err, backend.Unknown)
	if !errors.Is(err, redisson.ErrNotReplicated) || !strings.Contains(fmt.Sprint(err), says) {
		t.Errorf("error %v, want ErrNotReplicated that says %q", err, says)
	}
}

// Replicas tests that acquisitions wait for replicas. The master has two replicas.
func Replicas(t *testing.T, p Package, master *testservers.Server, slaves []*testservers.Server) {
	ctx := t.Context()
	client := connect(t, master.Addr)
	both, scantBoth := Options{Replicas: 2, Timeout: Ample}, Options{Replicas: 2, Timeout: Scant}
	with := func(t *testing.T, o Options) Session { return open(t, p.Server(t, master.Addr, o)) }

	t.Run("on the wire", func(t *testing.T) {
		s := with(t, both)
		for range 2 { // at first the server doesn't know the scripts
			Free(t, s, "n")
		}
		m := Watch(t, master.Addr)
		Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
		if res := Must[backend.AcquireResult](t)(s.Acquire(ctx, Reenter(Alice))); res.Count != 2 {
			t.Errorf("re-entry: %+v", res)
		}
		if res := Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Bob))); res.Acquired ||
			res.Remaining <= 0 {
			t.Errorf("acquire by another: %+v", res)
		}
		Must[backend.ReleaseResult](t)(s.Release(ctx, Release(Alice)))
		Must[backend.ReleaseResult](t)(s.Release(ctx, Release(Alice)))
		const acquire, release, wait = `"EVALSHA" "SHA" "1" "n" "30000" `,
			`"EVALSHA" "SHA" "2" "n" "redisson_lock__channel:{n}" "0" "30000" `, `"WAIT" "2" "4000"`
		alice := Quoted(Alice)
		wantCommands(t, m,
			acquire+alice, wait,
			acquire+alice, Quoted("HGET", "n", Alice), wait,
			acquire+Quoted(Bob), wait,
			release+alice, release+alice)
	})

	t.Run("a script that is unknown counts once", func(t *testing.T) {
		client.FlushAll(ctx)
		client.ScriptFlush(ctx)
		if res := Must[backend.AcquireResult](t)(with(t, both).
			Acquire(ctx, Reenter(Alice))); res.Count != 1 {
			t.Errorf("acquired %d times", res.Count)
		}
	})

	t.Run("what is held is on the replicas", func(t *testing.T) {
		s := with(t, both)
		for i := range 100 {
			client.FlushAll(ctx)
			Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
			for _, slave := range slaves {
				if n, err := testservers.Do(slave.Addr, "HGET", "n", Alice); n != "1" {
					t.Fatalf("lock %d: a replica has %q, %v", i, n, err)
				}
			}
		}
	})

	t.Run("too few", func(t *testing.T) {
		client.FlushAll(ctx)
		slaves[0].Stop()
		defer slaves[0].Cont()
		one, s := with(t, Options{Replicas: 1, Timeout: Ample}), with(t, scantBoth)
		Must[backend.AcquireResult](t)(one.Acquire(ctx, Acquire(Alice)))

		_, err := s.Acquire(ctx, Acquire(Alice))
		wantNotReplicated(t, err, "1 of 2")
		_, err = s.Acquire(ctx, Reenter(Alice))
		wantNotReplicated(t, err, "1 of 2")
		WantHash(t, client, "n", map[string]string{Alice: "3"}, Lease)

		// Refused acquisitions and other steps don't wait for replicas.
		if res := Must[backend.AcquireResult](t)(s.Acquire(ctx, Reenter(Bob))); res.Acquired ||
			res.Remaining <= 0 {
			t.Errorf("acquire by another: %+v", res)
		}
		if !Must[backend.RenewResult](t)(s.Renew(ctx, Renew(Alice))).Held {
			t.Error("renew: lost")
		}
		Must[backend.ReleaseResult](t)(s.Release(ctx, Release(Alice)))
	})

	t.Run("other errors", func(t *testing.T) {
		client.FlushAll(ctx)
		master.Do("ACL", "SETUSER", "impatient", "on", ">secret", "~*", "&*", "+@all", "-wait")
		s := open(t, p.Server(t, master.Addr, Options{
			User: "impatient", Replicas: 2, Timeout: Scant,
		}))
		_, err := s.Acquire(ctx, Acquire(Alice))
		wantNotReplicated(t, err, "NOPERM")
		if res := Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Bob))); res.Acquired {
			t.Error("acquired by another")
		}

		// The errors of steps that weren't carried out don't mention replicas.
		client.FlushAll(ctx)
		client.Set(ctx, "n", "precious", 0)
		_, err = with(t, scantBoth).Acquire(ctx, Acquire(Alice))
		WantKind(t, err, backend.Refused)
		if errors.Is(err, redisson.ErrNotReplicated) || !errors.Is(err, backend.ErrConflict) {
			t.Errorf("acquire on a string: %v", err)
		}
		client.FlushAll(ctx)
		testservers.Until(t, "a replica is empty, too", func() bool {
			return slaves[0].Do("DBSIZE") == "0"
		})
		_, err = open(t, p.Server(t, slaves[0].Addr, both)).Acquire(ctx, Acquire(Alice))
		WantKind(t, err, backend.Retry)
	})

	t.Run("a reply that is lost", func(t *testing.T) {
		client.FlushAll(ctx)
		proxy := NewProxy(t, master.Addr, faults.RESP)
		s := open(t, p.Server(t, proxy.Addr(), both))
		Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
		proxy.LoseReply(OnLock)
		_, err := s.Acquire(ctx, Acquire(Alice))
		WantKind(t, err, backend.Unknown)
		testservers.Until(t, "it is carried out", func() bool {
			return client.HGet(ctx, "n", Alice).Val() == "2"
		})
		testservers.Until(t, "the next is carried out, once", func() bool {
			_, err := s.Acquire(ctx, Acquire(Bob)) // on an arbitrary connection
			return err == nil
		})
		WantHash(t, client, "n", map[string]string{Alice: "2"}, Lease)
	})

	t.Run("locker", func(t *testing.T) {
		client.FlushAll(ctx)
		c := locks(t, p.Server(t, master.Addr, scantBoth))
		slaves[0].Stop()
		ok, err := c.Locker("a").TryLock(ctx)
		if ok || !errors.Is(err, redisson.ErrNotReplicated) {
			t.Errorf("TryLock: %v, %v", ok, err)
		}
		// If the context ends during an attempt, the error doesn't mention replicas. So the test
		// repeats the call until its context ends in a pause between two attempts.
		testservers.Until(t, "LockContext says that it is not replicated", func() bool {
			short, cancel := context.WithTimeout(ctx, 12*Scant)
			defer cancel()
			err := c.Locker("b").LockContext(short)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("LockContext: %v", err)
			}
			return errors.Is(err, redisson.ErrNotReplicated)
		})
		testservers.Until(t, "they are taken back", func() bool {
			return client.DBSize(ctx).Val() == 0
		})

		waits := make(chan error)
		go func() { waits <- c.Locker("c").LockContext(ctx) }()
		testservers.Until(t, "an attempt is made", func() bool {
			return client.DBSize(ctx).Val() == 1
		})
		slaves[0].Cont()
		if err := <-waits; err != nil {
			t.Errorf("LockContext: %v", err)
		}
		if err := c.Locker("c").UnlockContext(ctx); !errors.Is(err, dlock.ErrNotHeld) {
			t.Errorf("UnlockContext by another Locker: %v", err)
		}
	})

	t.Run("the caller leaves", func(t *testing.T) {
		client.FlushAll(ctx)
		slaves[0].Stop()
		defer slaves[0].Cont()
		c := locks(t, p.Server(t, master.Addr, both))
		leaving, cancel := context.WithCancel(ctx)
		left := make(chan error)
		go func() { left <- c.Locker("n").LockContext(leaving) }()
		testservers.Until(t, "the master has it", func() bool {
			return client.DBSize(ctx).Val() == 1
		})
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("LockContext: %v", err)
		}
		testservers.Until(t, "it is taken back", func() bool {
			return client.DBSize(ctx).Val() == 0
		})
	})
}

// ReplicasInCluster tests that acquisitions in a cluster wait for replicas. Each master has one
// replica.
func ReplicasInCluster(t *testing.T, p Package, masters, replicas []*testservers.Server) {
	ctx := t.Context()
	s := open(t, p.Cluster(t, masters, Options{Replicas: 1, Timeout: Ample}))
	try := func(name, owner string) (backend.AcquireResult, error) {
		return s.Acquire(ctx, backend.AcquireRequest{
			Name: name, Owner: owner, Lease: Lease, Reentry: true,
		})
	}
	for i := range 10 { // spread over all masters
		name := fmt.Sprint("name", i)
		if res := Must[backend.AcquireResult](t)(try(name, Alice)); res.Count != 1 {
			t.Errorf("%s: %+v", name, res)
		}
		if res := Must[backend.AcquireResult](t)(try(name, Bob)); res.Acquired {
			t.Errorf("%s: acquired by another", name)
		}
	}

	const name = "moving"
	scanty := open(t, p.Cluster(t, masters, Options{Replicas: 2, Timeout: Scant}))
	_, err := scanty.Acquire(ctx, backend.AcquireRequest{Name: name, Owner: Bob, Lease: Lease})
	wantNotReplicated(t, err, "1 of 2")
	Must[backend.ReleaseResult](t)(s.Release(ctx, backend.ReleaseRequest{
		Name: name, Owner: Bob, Lease: Lease,
	}))

	NewMove(t, masters, name).Finish()
	testservers.Until(t, "it is acquired where the slot is now", func() bool {
		res, err := try(name, Alice)
		if err != nil {
			WantKind(t, err, backend.Retry)
			return false
		}
		if !res.Acquired || res.Count != 1 {
			t.Errorf("the first acquisition: %+v", res)
		}
		return true
	})
	// The session doesn't count acknowledgments from another server's replicas.
	_, err = scanty.Acquire(ctx, backend.AcquireRequest{Name: name, Owner: Alice, Lease: Lease})
	testservers.Until(t, "the slot is found", func() bool {
		if IsKind(err, backend.Retry) {
			_, err = scanty.Acquire(ctx, backend.AcquireRequest{
				Name: name, Owner: Alice, Lease: Lease,
			})
			return false
		}
		return true
	})
	wantNotReplicated(t, err, "1 of 2")

	// The client isn't notified of this failover, so it must find out by itself.
	TakeOver(t, masters, replicas, name)
	testservers.Until(t, "the new master is asked", func() bool {
		res, err := scanty.Acquire(ctx, backend.AcquireRequest{
			Name: name, Owner: Bob, Lease: Lease,
		})
		if res.Acquired || errors.Is(err, redisson.ErrNotReplicated) {
			t.Error("the lock was lost in the failover")
		}
		return err == nil
	})
}

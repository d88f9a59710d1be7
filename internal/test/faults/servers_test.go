package faults_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/postgresbackend"
)

func hungBriefly(l *lab) {
	a, b := l.direct(), l.direct()
	g := a.grab()
	w := b.reach()
	l.server.Stop()
	stopped := time.Now()
	l.pass(stopped.Add(steady / 2))
	l.server.Cont()
	g.survives(stopped)
	g.let()
	w.in()
	w.let()
}

// The server doesn't answer for longer than a lease. The holder loses the lock by its own clock.
func hungForLong(l *lab) {
	a, b := l.direct(l.short()), l.direct(dlock.WithLease(long))
	g := a.grab()
	w := b.reach()
	l.server.Stop()
	l.pass(time.Now().Add(l.store.lease))
	if g.believes() {
		l.Error("a holder believes for a lease after the last answer")
	}
	g.told()
	l.server.Cont()
	w.in()
	g.isLost()
	w.holds()
	w.let()
}

// A server that forgets the lock lets the next party in before the holder is told.
func restartedEmpty(l *lab) {
	l.absent = true
	a, b := l.direct(), l.direct()
	g := a.grab()
	w := b.reach()
	if l.store == etcdStore {
		l.mu.Lock()
		l.numbers = nil // they restart with etcd's revisions; no waiter gets in before
		l.mu.Unlock()
	}
	if restart := l.store.restart; restart != nil {
		restart(l.server)
	} else {
		l.server.Restart()
	}
	g.isLost()
	w.in()
	w.holds()
	w.let()
}

func withData(t *testing.T, s *store, options []dlock.Option) *lab {
	if s == postgresStore {
		return oneServer(t, s, options)
	}
	return newLab(t, s, options, testservers.EtcdCluster(t, 1)...)
}

func restartedWithData(l *lab) {
	a, b := l.direct(), l.direct()
	g := a.grab()
	w := b.reach()
	killed := time.Now()
	l.server.Restart()
	g.survives(killed)
	l.isTaken(b)
	g.let()
	w.in()
	w.let()
}

// If a process of the server is killed, the server ends all others, and recovers from its log.
func backendKilled(l *lab) {
	a, b := l.direct(), l.direct()
	g := a.grab()
	w := b.reach()
	pid, err := strconv.Atoi(l.server.SQL(`SELECT min(pid) FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`))
	must(l.T, err)
	killed := time.Now()
	must(l.T, syscall.Kill(pid, syscall.SIGKILL))
	g.survives(killed)
	l.isTaken(b)
	g.let()
	w.in()
	w.let()
}

// withStandby starts a PostgreSQL with a standby. Its clients connect to the primary of the two.
func withStandby(t *testing.T, s *store, options []dlock.Option) *lab {
	primary := s.start(t)
	standby := testservers.PostgresStandby(t, primary, "standby")
	follow := *s
	follow.connect = func(addrs ...string) (backend.Backend, func(), error) {
		b, err := postgresbackend.Connect(fmt.Sprintf(
			"postgres://postgres@%s,%s/postgres?sslmode=disable&target_session_attrs=read-write",
			primary.Addr, standby.Addr))
		if err != nil {
			return nil, nil, err
		}
		return b, b.Close, nil
	}
	l := newLab(t, &follow, options, standby)
	l.master = primary
	return l
}

// withSynchronousStandby is withStandby with commits that wait for the standby.
func withSynchronousStandby(t *testing.T, s *store, options []dlock.Option) *lab {
	l := withStandby(t, s, options)
	l.master.SQL(`ALTER SYSTEM SET synchronous_standby_names = 'standby'`)
	l.master.SQL(`SELECT pg_reload_conf()`)
	testservers.Until(t, "the standby is waited for", func() bool {
		return l.master.SQL(`SELECT sync_state FROM pg_stat_replication`) == "sync"
	})
	return l
}

// A standby takes over from a killed primary, and has its locks. A synchronous standby surely has
// the last acquisition. For another standby, the test waits until it has.
func promoted(l *lab) {
	a, b := l.direct(), l.direct()
	g := a.grab()
	w := b.reach()
	if l.master.SQL(`SHOW synchronous_standby_names`) == "" {
		l.replicated()
	}
	killed := time.Now()
	l.master.Kill()
	l.server.SQL(`SELECT pg_promote()`)
	g.survives(killed)
	l.isTaken(b)
	g.let()
	w.in()
	w.let()
}

// replicated waits until the standby knows that the lock is held.
func (l *lab) replicated() {
	l.Helper()
	testservers.Until(l.T, "the standby knows", func() bool {
		return l.server.SQL(`SELECT count(*) FROM distsync.distsync_v1_lock
			WHERE name = '`+l.lock+`' AND owner IS NOT NULL`) == "1"
	})
}

// A standby that doesn't know the lock takes over. The test makes it forget the lock. The holder is
// told at its next renewal, and until then two parties have the lock.
func promotedWithout(l *lab) {
	l.absent = true
	a, b := l.direct(), l.direct()
	g := a.grab()
	w := b.reach()
	l.replicated() // otherwise the waiter might get the lock before the test makes it forgotten
	l.master.Kill()
	l.server.SQL(`SELECT pg_promote()`)
	l.server.SQL(
		`TRUNCATE distsync.distsync_v1_lock, distsync.distsync_v1_part, distsync.distsync_v1_latch`)
	w.in()
	g.isLost()
	w.holds()
	w.let()
}

func scriptsFlushed(l *lab) {
	a, b := l.proxied(), l.proxied()
	flush := func() { l.server.Do("SCRIPT", "FLUSH") }
	flush()
	g := a.grab()
	w := b.queue()
	flush()
	g.survives(time.Now())
	flush()
	must(l.T, a.locker().LockContext(g.ctx))
	flush()
	must(l.T, a.locker().UnlockContext(g.ctx))
	l.isTaken(l.direct())
	flush()
	g.let()
	w.in()
	w.let()
}

// The key of a lock is deleted before a re-entry, or before a partial release.
func keyDeleted(l *lab) {
	for _, again := range []bool{false, true} {
		a, b := l.direct(dlock.WithLease(long)), l.direct()
		g := a.grab()
		if again {
			must(l.T, a.locker().LockContext(g.ctx))
		}
		l.store.deleteKey(l.T, l.server.Addr, l.lock)
		if again {
			if err := a.locker().UnlockContext(g.ctx); !errors.Is(err, dlock.ErrLost) {
				l.Errorf("a partial release of what is gone: %v", err)
			}
		} else if err := a.locker().LockContext(g.ctx); !errors.Is(err, dlock.ErrLost) {
			l.Errorf("a re-entry of what is gone: %v", err)
		}
		g.isLost()
		l.isFree(b)
		l.isUnlocked()
	}
}

// The key is deleted, and another party gets the lock. The holder is told at its next renewal.
func keyReplaced(l *lab) {
	l.absent = true
	a, b := l.direct(), l.direct()
	g := a.grab()
	l.store.deleteKey(l.T, l.server.Addr, l.lock)
	w := b.grab()
	g.isLost()
	w.holds()
	w.let()
}

func threeNodes(t *testing.T, s *store, options []dlock.Option) *lab {
	var nodes []*testservers.Server
	switch s.name {
	case "redis":
		nodes = testservers.RedisCluster(t, 3)
	case "valkey":
		nodes = testservers.ValkeyCluster(t, 3)
	default:
		nodes = testservers.EtcdCluster(t, 3)
	}
	return newLab(t, s, options, nodes...)
}

// One node of a cluster hangs for longer than a lease. Only the locks on it are lost.
func nodeHangs(l *lab) {
	a, b := l.direct(), l.direct()
	var grips []*grip
	for _, node := range l.servers {
		grips = append(grips, a.at(nameOn(l.T, node)).grab())
	}
	struck := grips[0]
	w := b.at(struck.name).reach()
	l.server.Stop()
	stopped := time.Now()
	for _, g := range grips[1:] {
		g.survives(stopped)
	}
	if struck.believes() {
		l.Error("a holder believes for a lease after the last answer")
	}
	l.server.Cont()
	struck.isLost()
	w.in()
	w.let()
	for _, g := range grips[1:] {
		g.let()
	}
}

// nameOn returns a lock name in one of a node's slots.
func nameOn(t *testing.T, node *testservers.Server) string {
	for i := range 100 {
		name := fmt.Sprint("lock", i)
		if _, err := testservers.Do(node.Addr, "EXISTS", name); err == nil {
			return name
		}
	}
	t.Fatal("a node has no slots")
	return ""
}

// One member of three hangs for longer than a lease, and then dies. No lock is lost.
func memberGone(l *lab) {
	a, b := l.direct(), l.direct()
	g := a.grab()
	w := b.reach()
	for _, strike := range []func(){l.server.Stop, l.server.Kill} {
		strike()
		l.pass(time.Now().Add(steady * 5 / 4))
		if !g.believes() { // asking the store might hang with that member
			l.Errorf("the hold is lost: %v", context.Cause(g.ctx))
		}
	}
	g.let()
	w.in()
	w.let()
	l.server.Restart()
}

// withSentinels starts a master with one replica, which takes over when the master dies.
func withSentinels(t *testing.T, s *store, options []dlock.Option) *lab {
	start, connect := testservers.RedisSentinel, connectRedisSentinel
	if s.name == "valkey" {
		start, connect = testservers.ValkeySentinel, connectValkeySentinel
	}
	sentinel := start(t, 1, time.Second)
	follow := *s
	follow.connect = func(...string) (backend.Backend, func(), error) {
		return connect(sentinel.Name, sentinel.SentinelAddrs())
	}
	l := newLab(t, &follow, options, sentinel.Replicas[0])
	l.master = sentinel.Master
	return l
}

// A replica that doesn't know the lock becomes the master. The test makes it forget the lock, as if
// the acquisition hadn't reached it before the master died.
func failedOver(l *lab) {
	l.absent = true
	a, b := l.direct(), l.direct()
	g := a.grab()
	w := b.reach()
	testservers.Until(l.T, "the replica knows", func() bool {
		return l.server.Do("EXISTS", l.lock) == "1"
	})
	l.server.Do("CONFIG", "SET", "replica-read-only", "no")
	l.server.Do("DEL", l.lock)
	l.master.Kill()
	w.in()
	g.isLost()
	w.holds()
	w.let()
}

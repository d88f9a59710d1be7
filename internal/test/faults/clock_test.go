package faults_test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Redis and Valkey keep leases by their wall clock. libfaketime can't change that, since its start
// and that of the servers' jemalloc wait for each other. Both of its libraries do, even without
// faking the monotonic clock, and with jemalloc loaded first. Time namespaces don't have the wall
// clock. The small library in testdata replaces three functions, and reads the offset while the
// server runs.

// A clock is the wall clock of a server.
type clock struct {
	t    testing.TB
	file string // has the number of seconds that the clock is ahead
}

func (c *clock) set(ahead time.Duration) {
	c.t.Helper()
	// This overwrites the old value without truncating the file, which the server has mapped into
	// its memory.
	f, err := os.OpenFile(c.file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	if err := binary.Write(f, binary.NativeEndian, int64(ahead/time.Second)); err != nil {
		c.t.Fatal(err)
	}
}

// withClock starts a server whose wall clock the test can set. At first it is an hour ahead.
func withClock(t *testing.T, s *store, options []dlock.Option) *lab {
	t.Helper()
	server := testservers.Program(t, s.name+"-server")
	library := filepath.Join(t.TempDir(), "clock.so")
	if out, err := exec.Command(testservers.Program(t, "cc"), "-shared", "-fPIC", "-o", library,
		"testdata/clock.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	c := &clock{t, filepath.Join(t.TempDir(), "ahead")}
	c.set(time.Hour)
	l := newLab(t, s, options, testservers.Start(t, testservers.Spec{
		Program: "env",
		Args: func(port int, dir string) []string {
			return []string{
				"LD_PRELOAD=" + library, "CLOCK_AHEAD=" + c.file, server,
				"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir, "--save", "",
			}
		},
		Ready: func(addr string) error {
			_, err := testservers.Do(addr, "PING")
			return err
		},
	}))
	l.clock = c
	return l
}

// clockIs fails the test unless the server's clock is ahead by this much.
func (l *lab) clockIs(ahead time.Duration) {
	l.Helper()
	l.server.Do("SETEX", "later", "100", "") // EXPIRETIME follows the server's clock
	at, err := strconv.ParseInt(l.server.Do("EXPIRETIME", "later"), 10, 64)
	must(l.T, err)
	l.server.Do("DEL", "later")
	if got := time.Until(time.Unix(at-100, 0)); (got - ahead).Abs() > time.Minute {
		l.Fatalf("the server's clock is %v ahead, want %v", got, ahead)
	}
}

// A wrong clock does no harm, and neither does a clock that jumps back. Holds are renewed, and dead
// holders' leases last longer.
func clockOff(l *lab) {
	l.clock.set(time.Hour)
	l.clockIs(time.Hour)
	a, b := l.direct(), l.proxied(dlock.WithLease(long))
	g := a.grab()
	w := b.queue()
	for _, ahead := range []time.Duration{0, -time.Hour} {
		l.clock.set(ahead)
		l.clockIs(ahead)
		g.survives(time.Now())
	}
	g.let()
	w.in()
	w.let()

	g = a.grab(dlock.FixedLease(l.store.lease))
	w = l.proxied(dlock.WithLease(long)).queue()
	w.in() // when that lease expires
	g.isLost()
	w.let()
}

// Tokens grow whatever the clock does. The referee checks them.
func numbersGrow(l *lab) {
	a, b := l.direct(), l.direct()
	for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 2 * time.Hour} {
		l.clock.set(ahead)
		l.clockIs(ahead)
		l.isFree(a)
		l.isFree(b)
	}
}

// A clock that jumps ahead ends every lease. The next party may get the lock before the holder is
// told.
func clockJumpsAhead(l *lab) {
	l.absent = true
	l.clock.set(time.Hour)
	l.clockIs(time.Hour)
	a, b := l.direct(), l.direct()
	g := a.grab()
	w := b.reach()
	l.clock.set(2 * time.Hour)
	g.isLost()
	w.in()
	w.holds()
	w.let()
}

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

// Redis and Valkey keep leases by their wall clock. libfaketime can't set that: its own start and
// that of jemalloc, which the servers are linked with, wait for each other, in all its variants
// (tried: both of its libraries, without faking the monotonic clock, with jemalloc loaded before
// it). Time namespaces have no wall clock. The little library in testdata replaces three functions,
// and can be told while the server runs.

// A clock is the wall clock of a server.
type clock struct {
	t    testing.TB
	file string // how many seconds it is ahead
}

func (c *clock) set(ahead time.Duration) {
	c.t.Helper()
	// Over what is there: a server sees the file as part of its memory.
	f, err := os.OpenFile(c.file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	if err := binary.Write(f, binary.NativeEndian, int64(ahead/time.Second)); err != nil {
		c.t.Fatal(err)
	}
}

// withClock starts a server whose wall clock is the test's, an hour ahead at first.
func withClock(t *testing.T, s *store, options []dlock.Option) *lab {
	t.Helper()
	server := testservers.Program(t, s.name+"-server")
	library := filepath.Join(t.TempDir(), "clock.so")
	if out, err := exec.Command(testservers.Program(t, "cc"), "-shared", "-fPIC", "-o", library, "testdata/clock.c").CombinedOutput(); err != nil {
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

// clockIs says that the server's clock shows what it was told.
func (l *lab) clockIs(ahead time.Duration) {
	l.Helper()
	l.server.Do("SETEX", "later", "100", "") // EXPIRETIME is told by the server's clock
	at, err := strconv.ParseInt(l.server.Do("EXPIRETIME", "later"), 10, 64)
	must(l.T, err)
	l.server.Do("DEL", "later")
	if got := time.Until(time.Unix(at-100, 0)); (got - ahead).Abs() > time.Minute {
		l.Fatalf("the server's clock is %v ahead, want %v", got, ahead)
	}
}

// A clock that is off does no harm, nor does one that jumps back: what is held is renewed, and what
// isn't lasts longer.
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
	w.in() // when that is over
	g.isLost()
	w.let()
}

// Numbers grow whatever the clock does: the referee looks at them.
func numbersGrow(l *lab) {
	a, b := l.direct(), l.direct()
	for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 2 * time.Hour} {
		l.clock.set(ahead)
		l.clockIs(ahead)
		l.isFree(a)
		l.isFree(b)
	}
}

// A clock that jumps ahead ends every lease: the next gets in before the holder is told.
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

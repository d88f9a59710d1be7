package faults_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A process is frozen for longer than its lease, while a second goroutine of it waits. When it goes
// on, the holder's first check tells it of the loss. Its late unlock doesn't change the next
// holder's hold.
func processPaused(l *lab) {
	proxy := newProxy(l.T, l.server.Addr, l.store.protocol)
	p, b := l.process(proxy.Addr()), l.direct(dlock.WithLease(long))
	p.lock("first")
	p.order("err", "first")
	if got := p.says("first"); got != "<nil>" {
		l.Errorf("the context of a hold says %s", got)
	}
	p.order("lock", "second")
	p.stop()
	g := b.grab()
	p.order("err", "first") // the process reads it as soon as it goes on
	p.cont()
	if got := p.says("first"); got != "context canceled" {
		l.Errorf("the first look after a pause: %s", got)
	}
	held, deliver := proxy.Hold(l.store.requests(p.kind)[release][0])
	p.order("unlock", "first")
	if got := p.says("first"); !strings.HasPrefix(got,
		fmt.Sprintf("dlock: unlock %q: lost after", l.lock)) ||
		!strings.Contains(got, "stood still") {
		l.Errorf("the unlock after a pause: %s", got)
	}
	come(l.T, "the release", held)
	deliver()
	proxy.Settle()
	g.holds()
	select {
	case got := <-p.of("second"):
		l.Errorf("the goroutine that waits says %s while another has the lock", got)
	default:
	}
	g.let()
	if got := p.says("second"); got != "in" {
		l.Errorf("the goroutine that waited: %s", got)
	}
	p.order("unlock", "second")
	if got := p.says("second"); got != "<nil>" {
		l.Errorf("the unlock of the goroutine that waited: %s", got)
	}
}

// A holder is killed. A waiter gets the lock when the dead holder's lease expires, even if its own
// lease is long.
func holderKilled(l *lab) {
	p, b := l.process(l.server.Addr), l.proxied(dlock.WithLease(long))
	p.lock("first")
	w := b.queue()
	p.kill()
	w.in()
	w.let()
}

// A waiter is killed while it waits, and while it may be given the lock.
func waiterKilled(l *lab) {
	for _, first := range []bool{true, false} {
		p := l.process(l.server.Addr)
		a, b := l.direct(dlock.WithLease(long)), l.proxied(dlock.WithLease(long))
		g := a.grab()
		p.order("lock", "first")
		if p.kind == backend.Fair {
			l.lined(1)
		}
		w := b.queue()
		if first {
			p.kill()
			g.let()
		} else {
			g.let()
			p.kill()
		}
		killed := time.Now()
		w.in()
		l.Logf("the next is in after %v", time.Since(killed).Round(time.Millisecond))
		w.let()
	}
}

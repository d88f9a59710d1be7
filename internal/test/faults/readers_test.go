package faults_test

import (
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// together returns readers of one client that join the first one's read, without requests of their
// own. After it, the party can't reach the store any more.
func (p *party) together(n int) []*grip {
	p.lab.Helper()
	all := []*grip{p.grab()}
	p.Block(faults.Both)
	for len(all) < n {
		all = append(all, p.grab())
	}
	return all
}

// Each reader that shares a read is told when it is lost.
func sharedReadLost(l *lab) {
	a, b := l.proxied(l.short(), dlock.WithHandover(long)), l.direct(dlock.WithLease(long))
	readers := a.together(3)
	w := b.reach()
	for _, g := range readers {
		g.told()
	}
	w.in()
	a.Unblock(faults.Both)
	for _, g := range readers {
		g.isLost()
	}
	w.holds()
	w.let()
}

// When readers leave, the hold of the one that stays is still renewed.
func oneReaderLeaves(l *lab) {
	a, b := l.proxied(dlock.WithHandover(long)), l.direct(dlock.WithLease(long))
	readers := a.together(3)
	a.Unblock(faults.Both)
	w := b.reach()
	left := time.Now()
	readers[0].let() // the one that sent the request
	readers[1].let()
	readers[2].survives(left)
	w.waits()
	readers[2].let()
	w.in()
	w.let()
}

// waits fails the test if the lock is granted already.
func (g *grip) waits() {
	g.lab.Helper()
	select {
	case <-g.inside:
		g.lab.Error("granted beside another")
	default:
	}
}

// A killed reader keeps writers out only for its lease, even if another reader has a long one.
func deadReader(l *lab) {
	p, a, b := l.process(l.server.Addr), l.direct(dlock.WithLease(long)),
		l.proxied(dlock.WithLease(long))
	p.lock("first")
	g := a.grab()
	w := b.queue()
	p.kill()
	l.pass(time.Now().Add(childLease))
	g.holds()
	w.waits()
	g.let()
	w.in()
	w.let()
}

// A waiting writer keeps readers out. A dead one does so only until its note expires.
func waitingWriterKilled(l *lab) {
	p, a, b := l.process(l.server.Addr), l.direct(dlock.WithLease(long)),
		l.proxied(dlock.WithLease(long))
	g := a.grab()
	p.order("lock", "first")
	testservers.Until(l.T, "readers are kept out", func() bool {
		read := b.locker()
		ok, err := read.TryLock(l.Context())
		must(l.T, err)
		if ok {
			read.Unlock()
		}
		return !ok
	})
	w := b.queue()
	p.kill()
	w.in()
	g.let()
	w.let()
}

// A writer goes on as a reader. Others may read then, but not write.
func downgradeReplyLost(l *lab) {
	a, b := l.proxied(dlock.WithLease(long)), l.proxied(dlock.WithLease(long))
	g := a.grab()
	read := a.as(backend.Read).locker()
	must(l.T, read.LockContext(g.ctx))
	w := b.queue()
	lost := a.LoseReply(a.requests(release)[0])
	g.let()
	come(l.T, "the reply", lost)
	w.in()
	l.isTaken(b.as(backend.Write))
	w.let()
	l.isTaken(b.as(backend.Write))
	must(l.T, read.UnlockContext(g.ctx))
	l.isFree(b.as(backend.Write))
}

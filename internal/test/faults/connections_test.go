package faults_test

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A waiter with a long lease gets the lock only if it is woken, since it polls only after minutes.

func cutWhileWaiting(l *lab) {
	a, b := l.direct(dlock.WithLease(long)), l.proxied(dlock.WithLease(long))
	g := a.grab()
	w := b.queue()
	for range 3 {
		held, deliver := b.Hold(b.requests(subscribe)[0])
		b.Cut()
		come(l.T, "the next subscription", held)
		deliver()
	}
	g.let()
	w.in()
	w.let()
}

// The lock is released while the waiter has no subscription.
func subscriptionCut(l *lab) {
	a, b := l.direct(dlock.WithLease(long)), l.proxied(dlock.WithLease(long))
	g := a.grab()
	w := b.queue()
	held, deliver := b.Hold(b.requests(subscribe)[0])
	if l.store.protocol == faults.RESP {
		testservers.Until(l.T, "the subscription stands", func() bool {
			return l.server.Do("CLIENT", "KILL", "TYPE", "pubsub") == "1"
		})
	} else {
		b.Cut() // etcd's client has one connection for everything
	}
	come(l.T, "the next subscription", held)
	g.let()
	deliver()
	w.in()
	w.let()
}

func everyConnectionCut(l *lab) {
	a, b := l.proxied(), l.proxied()
	g := a.grab()
	w := b.queue()
	begin := time.Now()
	for time.Since(begin) < steady/2 {
		if l.store.protocol == faults.RESP {
			l.server.Do("CLIENT", "KILL", "TYPE", "pubsub")
			l.server.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		} else {
			a.Cut()
			b.Cut()
		}
		l.pass(time.Now().Add(steady / 10))
	}
	g.survives(begin)
	g.let()
	w.in()
	w.let()
}

// A holder whose connection falls silent loses the lock by its own clock. The loss stays when the
// network works again and all messages arrive late.
func blackHoleWhileHeld(l *lab) {
	for _, d := range []faults.Direction{faults.ToServer, faults.ToClient, faults.Both} {
		a, b := l.proxied(l.short()), l.direct(dlock.WithLease(long))
		g := a.grab()
		w := b.reach()
		a.Block(d)
		l.pass(time.Now().Add(l.store.lease))
		if g.believes() {
			l.Error("a holder who has been cut off for a lease believes")
		}
		g.told()
		w.in()
		a.Unblock(d)
		if a.kind != backend.Permits {
			if held, err := a.locker().IsHeld(g.ctx); held {
				l.Errorf("IsHeld after the loss: %v, %v", held, err)
			}
		}
		g.isLost()
		w.holds()
		w.let()
	}
}

// The lock is released while a waiter is cut off. Messages under way arrive late, or never.
func blackHoleWhileWaiting(l *lab) {
	for _, d := range []faults.Direction{faults.ToServer, faults.ToClient, faults.Both} {
		for _, dropped := range []bool{false, true} {
			a, b := l.direct(dlock.WithLease(long)), l.proxied(dlock.WithLease(long))
			g := a.grab()
			w := b.queue()
			b.Block(d)
			g.let()
			if dropped {
				b.Cut()
			}
			b.Unblock(d)
			w.in()
			w.let()
		}
	}
}

// A wait ends with its context, whatever the network does.
func blackHoleWhileGivingUp(l *lab) {
	a, b := l.direct(dlock.WithLease(long)), l.proxied(dlock.WithLease(long))
	g := a.grab()
	w := b.queue()
	b.Block(faults.Both)
	w.cancel()
	if err := come(l.T, "the end of the wait", w.done); !errors.Is(err, context.Canceled) {
		l.Errorf("a cancelled wait: %v", err)
	}
	b.Unblock(faults.Both)
	g.let()
	l.isFree(b)
}

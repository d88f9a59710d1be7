package faults_test

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/depth"
)

// Leases are long where the client must release the leftovers of a request, and not wait for them
// to expire.

func acquireReplyLost(l *lab) {
	for _, request := range l.requests(acquire) {
		a, b := l.proxied(dlock.WithLease(long)), l.direct()
		lost := a.LoseReply(request)
		g := a.grab()
		come(l.T, "the reply", lost)
		l.isTaken(b)
		g.let()
		l.isFree(b)

		lost = a.LoseReply(request)
		if giveBack, err := a.try(l.Context()); giveBack != nil || err == nil {
			l.Errorf("an attempt without an answer: acquired %v, %v", giveBack != nil, err)
		}
		come(l.T, "the reply", lost)
		l.isFree(b)
	}
}

// An etcd lease whose grant got lost expires.
func grantReplyLost(l *lab) {
	a := l.proxied(l.short())
	lost := a.LoseReply(calls("Lease/LeaseGrant"))
	g := a.grab()
	come(l.T, "the reply", lost)
	g.let()
}

func reentryReplyLost(l *lab) {
	for _, request := range l.requests(acquire) {
		a, b := l.proxied(dlock.WithLease(long)), l.direct()
		g := a.grab()
		lost := a.LoseReply(request)
		must(l.T, a.locker().LockContext(g.ctx))
		come(l.T, "the reply", lost)
		l.isTaken(b)
		must(l.T, a.locker().UnlockContext(g.ctx))
		l.isTaken(b)

		lost = a.LoseReply(request)
		if ok, err := a.locker().TryLock(g.ctx); ok || err == nil {
			l.Errorf("TryLock without an answer: %v, %v", ok, err)
		}
		come(l.T, "the reply", lost)
		if !g.believes() {
			l.Error("the hold is lost with a re-entry")
		}
		l.isTaken(b)
		g.let()
		l.isFree(b)
	}
}

func partialReplyLost(l *lab) {
	for _, request := range l.requests(partial) {
		a, b := l.proxied(dlock.WithLease(long)), l.direct()
		g := a.grab()
		must(l.T, a.locker().LockContext(g.ctx))
		lost := a.LoseReply(request)
		must(l.T, a.locker().UnlockContext(g.ctx))
		come(l.T, "the reply", lost)
		if !g.believes() {
			l.Error("the hold is lost with a partial release")
		}
		l.isTaken(b)
		g.let()
		l.isFree(b)
	}
}

func releaseReplyLost(l *lab) {
	for i, request := range l.requests(release) {
		if i > 0 && len(l.kinds) > 0 && depth.Now() < depth.Night {
			// etcd revokes the lease long after the release, for all kinds of lock
			break
		}
		a, b := l.proxied(dlock.WithLease(long)), l.proxied(dlock.WithLease(long))
		g := a.grab()
		w := b.queue()
		lost := a.LoseReply(request)
		g.let()
		come(l.T, "the reply", lost)
		w.in()
		w.let()
	}
}

// Releases are lost before they reach the server, a partial one and a last one.
func releasesDropped(l *lab) {
	a, b := l.proxied(dlock.WithLease(long)), l.direct()
	g := a.grab()
	must(l.T, a.locker().LockContext(g.ctx))
	dropped := func(s step, unlock func() error) {
		held, _ := a.Hold(a.requests(s)[0])
		done := make(chan error, 1)
		go func() { done <- unlock() }()
		come(l.T, "the release", held)
		a.Cut()
		must(l.T, come(l.T, "the end of the release", done))
	}
	dropped(partial, func() error { return a.locker().UnlockContext(g.ctx) })
	l.isTaken(b)
	dropped(release, g.release)
	l.isFree(b)
}

func renewalReplyLost(l *lab) {
	a := l.proxied()
	g := a.grab()
	for _, request := range a.requests(renew) {
		come(l.T, "the reply", a.LoseReply(request))
	}
	g.survives(time.Now())
	g.let()
}

// A connection falls silent with a renewal. The client sends another renewal in time, on another
// connection. go-redis has several, and would itself notice the silence too late.
func renewalHeldBack(l *lab) {
	a := l.proxied(dlock.WithLease(3 * time.Second))
	g := a.grab()
	held, _ := a.Hold(a.requests(renew)[0])
	come(l.T, "the request", held)
	l.pass(time.Now().Add(3 * time.Second))
	g.holds()
	g.let()
}

// The lease begins before the request is sent, not when its reply arrives.
func acquireReplyLate(l *lab) {
	a, b := l.proxied(), l.direct(dlock.WithLease(long))
	l.isFree(a) // so that it is connected
	held, deliver := a.Hold(a.requests(acquire)[0])
	g := a.reach(dlock.FixedLease(steady))
	come(l.T, "the request", held)
	a.Block(faults.ToClient)
	deliver()
	a.Settle()
	w := b.reach()
	l.pass(time.Now().Add(steady / 3))
	a.Unblock(faults.ToClient)
	g.in()
	w.in()
	// a holder whose lease began with the reply would still hold the lock now
	l.pass(time.Now().Add(steady / 2))
	w.let()
	g.isLost()
}

// The same applies to a renewal after which no other can be sent.
func renewalReplyLate(l *lab) {
	a, b := l.proxied(), l.direct(dlock.WithLease(long))
	g := a.grab()
	held, deliver := a.Hold(a.requests(renew)[0])
	come(l.T, "the request", held)
	a.Block(faults.ToClient)
	deliver()
	a.Settle()
	a.Block(faults.ToServer)
	w := b.reach()
	l.pass(time.Now().Add(steady / 3))
	a.Unblock(faults.ToClient)
	w.in()
	l.pass(time.Now().Add(steady / 2))
	w.let()
	g.isLost()
}

// An acquisition whose caller has left is carried out while another party has the lock, and after
// that.
func lateAcquire(l *lab) {
	for _, after := range []bool{false, true} {
		a, b := l.proxied(dlock.WithLease(long)), l.direct(dlock.WithLease(long))
		l.isFree(a)
		held, deliver := a.Hold(a.requests(acquire)[0])
		ctx, cancel := context.WithCancel(l.Context())
		returned := make(chan error, 1)
		go func() {
			returned <- a.do(ctx, func(context.Context) error { return errors.New("it has come") })
		}()
		come(l.T, "the request", held)
		cancel()
		if err := come(l.T, "the end of the wait", returned); !errors.Is(err, context.Canceled) {
			l.Errorf("a cancelled wait: %v", err)
		}
		g := b.grab()
		if after {
			g.let()
			deliver()
			a.Settle()
		} else {
			deliver()
			a.Settle()
			g.holds()
			g.let()
		}
		l.isFree(b)
		l.isUnlocked() // before A's lease expires
	}
}

// The first waiter of a client is woken, and gives up while its attempt is under way. No other
// message wakes the second.
func firstWaiterGivesUp(l *lab) {
	// On PostgreSQL, the attempt may be carried out after its take-back, which is sent on another
	// connection. Then it holds the lock until its lease expires.
	a, b := l.direct(dlock.WithLease(long)), l.proxied()
	g := a.grab()
	first := b.queue()
	second := b.reach()
	held, deliver := b.Hold(b.requests(acquire)[0])
	g.let()
	come(l.T, "the first waiter's attempt", held)
	first.cancel()
	if err := come(l.T, "the end of the wait", first.done); !errors.Is(err, context.Canceled) {
		l.Errorf("a cancelled wait: %v", err)
	}
	deliver()
	second.in()
	second.let()
}

// A release is carried out when another party has the lock by now.
func lateRelease(l *lab) {
	a, b := l.proxied(dlock.WithLease(long)), l.direct(dlock.WithLease(long))
	g := a.grab()
	held, deliver := a.Hold(a.requests(release)[0])
	close(g.leave)
	come(l.T, "the request", held)
	_, err := b.locker().ForceUnlock(l.Context()) // at once, since a request may have a deadline
	must(l.T, err)
	w := b.grab()
	deliver()
	a.Settle()
	w.holds()
	come(l.T, "the end of Do", g.done) // with any result
	w.let()
}

// A renewal is carried out when another party has the lock by now. It must not shorten that party's
// lease.
func lateRenewal(l *lab) {
	a, b := l.proxied(), l.direct(dlock.WithLease(long))
	g := a.grab()
	held, deliver := a.Hold(a.requests(renew)[0])
	come(l.T, "the request", held)
	close(g.leave)
	w := b.grab()
	deliver()
	a.Settle()
	w.holds()
	ttl, err := w.locker().TTL(l.Context())
	must(l.T, err)
	if ttl < long/2 {
		l.Errorf("the next holder's lease is %v", ttl)
	}
	come(l.T, "the end of Do", g.done) // with any result
	w.let()
}

package etcdbackend

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A lease is an etcd lease. It serves one hold at a time.
type lease struct {
	id    int64
	ttl   int64     // in seconds
	since time.Time // the lease lasts for at least ttl from this time
}

// leases grants the leases of a session. It keeps released leases for a while. If all requests of a
// hold were answered, none of them can still attach a key to the hold's lease, so the next hold can
// use that lease. This saves two writes: that lease isn't revoked, and no other one is granted.
//
// If a caller stops waiting for a grant, the next caller gets the granted lease.
type leases struct {
	store *store
	ctx   context.Context // ends with the session
	stop  context.CancelFunc

	mu       sync.Mutex
	shelves  map[int64]*shelf      // by ttl
	dropped  []lease               // to be revoked
	timed    map[int64]*time.Timer // the timers of leases that are to be revoked at a certain time
	sweeping bool                  // a goroutine is revoking idle and dropped leases
	closed   bool
	running  int           // the number of running goroutines
	settled  chan struct{} // closed when no goroutine runs; nil if no call waits for that
}

// A shelf holds leases that have the same TTL.
type shelf struct {
	idle     []lease        // in the order of their release
	waiting  []chan granted // waiting callers; at most one for each grant under way
	granting int
}

type granted struct {
	lease lease
	err   error
}

const (
	longestIdle = 15 * time.Second
	sweepEvery  = time.Second
	mostAtOnce  = 32 // how many leases a closed session revokes at once
)

func newLeases(st *store) *leases {
	ctx, stop := context.WithCancel(context.Background())
	return &leases{
		store: st, ctx: ctx, stop: stop,
		shelves: make(map[int64]*shelf), timed: make(map[int64]*time.Timer),
	}
}

// usable reports whether a lease has enough time left for a new hold.
func (l lease) usable(now time.Time) bool {
	return now.Sub(l.since) < min(time.Duration(l.ttl)*time.Second/2, longestIdle)
}

// ready reports whether a lease is available without a request.
func (ls *leases) ready(ttl int64) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	sh := ls.shelves[ttl]
	return sh != nil && len(sh.idle) > 0 && sh.idle[len(sh.idle)-1].usable(time.Now())
}

// get returns a lease of ttl seconds, or a longer one if the server doesn't grant one that short.
// The lease may have begun some time ago, but no key is attached to it.
func (ls *leases) get(ctx context.Context, ttl int64) (lease, error) {
	l, answer := ls.take(ttl)
	if answer == nil {
		return l, nil
	}
	select {
	case g := <-answer:
		return g.lease, g.err
	case <-ctx.Done():
	}
	if !ls.leave(ttl, answer) {
		g := <-answer
		return g.lease, g.err
	}
	return lease{}, ended(ctx)
}

// take returns an idle lease, or a channel for one that is being granted.
func (ls *leases) take(ttl int64) (lease, chan granted) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	sh := ls.shelf(ttl)
	if n := len(sh.idle) - 1; n >= 0 {
		l := sh.idle[n]
		sh.idle = sh.idle[:n]
		if l.usable(time.Now()) {
			return l, nil
		}
		ls.drop(l)
	}
	answer := make(chan granted, 1)
	sh.waiting = append(sh.waiting, answer)
	if sh.granting < len(sh.waiting) {
		sh.granting++
		ctx := ls.ctx
		if ls.closed { // a hold may still move to another lease after Close
			ctx = context.Background()
		}
		ls.run(func() { ls.grant(ctx, sh, ttl) })
	}
	return lease{}, answer
}

// shelf returns the shelf for leases of ttl seconds. The caller must hold ls.mu.
func (ls *leases) shelf(ttl int64) *shelf {
	sh := ls.shelves[ttl]
	if sh == nil {
		sh = new(shelf)
		ls.shelves[ttl] = sh
	}
	return sh
}

// leave ends the wait for a grant. It returns false if there is already an answer.
func (ls *leases) leave(ttl int64, answer chan granted) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	sh := ls.shelf(ttl)
	i := slices.Index(sh.waiting, answer)
	if i >= 0 {
		sh.waiting = slices.Delete(sh.waiting, i, i+1)
	}
	return i >= 0
}

// fresh grants a lease that begins now, for a caller that can't use an older one. The lease is
// never reused.
func (ls *leases) fresh(ctx context.Context, ttl int64) (l lease, err error) {
	l = newLease(ttl)
	l.ttl, err = ls.store.grant(ctx, l.id, ttl)
	if err != nil && backend.KindOf(err) == backend.Unknown {
		l.ttl = ttl
		ls.discard(l)
	}
	return l, err
}

// newLease returns a lease that is yet to be granted.
func newLease(ttl int64) lease {
	return lease{id: 1 + rand.Int64N(1<<62), ttl: ttl, since: time.Now()}
}

// grant grants a lease for a waiting caller. The lease's id is chosen before the request is sent,
// so that the lease can be revoked whatever the answer is.
func (ls *leases) grant(ctx context.Context, sh *shelf, ttl int64) {
	ctx, cancel := context.WithTimeout(ctx, longestGrant)
	defer cancel()
	l := newLease(ttl)
	var err error
	l.ttl, err = ls.store.grant(ctx, l.id, ttl)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	sh.granting--
	if err != nil && backend.KindOf(err) == backend.Unknown {
		l.ttl = ttl
		ls.drop(l)
	}
	switch {
	case len(sh.waiting) > 0:
		sh.waiting[0] <- granted{l, notDone(err)}
		sh.waiting = sh.waiting[1:]
	case err == nil:
		ls.shelve(l)
	}
}

// longestGrant is how long a goroutine tries to grant or revoke a lease in the background.
const longestGrant = 10 * time.Second

// put gives a lease back for reuse. No key is attached to it, and no request under way can attach
// one.
func (ls *leases) put(l lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.shelve(l)
}

// shelve keeps a lease for the next caller. The caller of shelve must hold ls.mu.
func (ls *leases) shelve(l lease) {
	if ls.closed || !l.usable(time.Now()) {
		ls.drop(l)
		return
	}
	sh := ls.shelf(l.ttl)
	if len(sh.waiting) > 0 {
		sh.waiting[0] <- granted{lease: l}
		sh.waiting = sh.waiting[1:]
		return
	}
	sh.idle = append(sh.idle, l)
	ls.sweep()
}

// discard marks leases to be revoked.
func (ls *leases) discard(all ...lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range all {
		ls.drop(l)
	}
}

// revokeIn revokes a lease after d. If the session is closed before then, or d is longer than
// longestTimed, the lease isn't revoked, and expires a few seconds after d. Compared with
// longestTimed, a few seconds don't matter.
func (ls *leases) revokeIn(l lease, d time.Duration) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.closed || d > longestTimed {
		return
	}
	ls.timed[l.id] = time.AfterFunc(d, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		delete(ls.timed, l.id)
		if ls.closed {
			return
		}
		ls.run(func() {
			ctx, cancel := context.WithTimeout(ls.ctx, longestGrant)
			defer cancel()
			if ls.store.revoke(ctx, l.id) != nil {
				ls.discard(l)
			}
		})
	})
}

// longestTimed is the longest time that revokeIn waits to revoke a lease.
const longestTimed = 10 * time.Minute

// distrust drops all idle leases. It is called after a lease has ended too early, since the idle
// ones may also have ended.
func (ls *leases) distrust() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, sh := range ls.shelves {
		ls.dropped = append(ls.dropped, sh.idle...)
		sh.idle = nil
	}
	ls.sweep()
}

// drop marks a lease to be revoked. The caller must hold ls.mu.
func (ls *leases) drop(l lease) {
	ls.dropped = append(ls.dropped, l)
	if ls.closed {
		due := ls.due(time.Now())
		ls.run(func() { ls.revokeAll(due) })
		return
	}
	ls.sweep()
}

// sweep starts the goroutine that revokes unused leases. The caller must hold ls.mu.
func (ls *leases) sweep() {
	if ls.sweeping || ls.closed {
		return
	}
	ls.sweeping = true
	ls.run(func() {
		for ls.sweepOnce() {
			select {
			case <-time.After(sweepEvery):
			case <-ls.ctx.Done():
				return
			}
		}
	})
}

// sweepOnce revokes unused leases. It returns false if none is left.
func (ls *leases) sweepOnce() bool {
	ls.mu.Lock()
	now := time.Now()
	due := ls.due(now)
	ls.mu.Unlock()
	var failed []lease
	for _, l := range due {
		ctx, cancel := context.WithTimeout(ls.ctx, longestGrant)
		// A lease that has run out need not be revoked.
		if err := ls.store.revoke(ctx, l.id); err != nil && time.Since(l.since) < keptFor(l.ttl) {
			failed = append(failed, l)
		}
		cancel()
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.dropped = append(ls.dropped, failed...)
	ls.sweeping = len(ls.dropped) > 0
	for _, sh := range ls.shelves {
		ls.sweeping = ls.sweeping || len(sh.idle) > 0
	}
	return ls.sweeping
}

// due returns the leases to revoke, and forgets them. The caller must hold ls.mu.
func (ls *leases) due(now time.Time) []lease {
	due := ls.dropped
	ls.dropped = nil
	for ttl, sh := range ls.shelves {
		// The leases that have been idle the longest come first.
		n := 0
		for n < len(sh.idle) && (ls.closed || !sh.idle[n].usable(now)) {
			n++
		}
		due = append(due, sh.idle[:n]...)
		sh.idle = sh.idle[n:]
		if len(sh.idle) == 0 && sh.granting == 0 {
			delete(ls.shelves, ttl)
		}
	}
	return due
}

// close starts to revoke all idle leases, and also the given lease, unless its id is 0. It returns
// without waiting for the store. Leases that can't be revoked within longestGrant run out.
func (ls *leases) close(last lease) {
	ls.stop()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = true
	for _, timer := range ls.timed {
		timer.Stop()
	}
	clear(ls.timed)
	if last.id != 0 {
		ls.dropped = append(ls.dropped, last)
	}
	if due := ls.due(time.Now()); len(due) > 0 {
		ls.run(func() { ls.revokeAll(due) })
	}
}

// background runs f in a goroutine. The context of f ends after longestGrant, or with the session.
func (ls *leases) background(f func(context.Context)) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.run(func() {
		ctx, cancel := context.WithTimeout(ls.ctx, longestGrant)
		defer cancel()
		f(ctx)
	})
}

// whileOpen runs f in a goroutine. The context of f ends only with the session.
func (ls *leases) whileOpen(f func(context.Context)) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.run(func() { f(ls.ctx) })
}

// run starts a goroutine. The caller must hold ls.mu.
func (ls *leases) run(f func()) {
	ls.running++
	go func() {
		f()
		ls.mu.Lock()
		defer ls.mu.Unlock()
		ls.running--
		if ls.running == 0 && ls.settled != nil {
			close(ls.settled)
			ls.settled = nil
		}
	}()
}

// settle waits until no goroutine runs.
func (ls *leases) settle() {
	ls.mu.Lock()
	if ls.running == 0 {
		ls.mu.Unlock()
		return
	}
	if ls.settled == nil {
		ls.settled = make(chan struct{})
	}
	settled := ls.settled
	ls.mu.Unlock()
	<-settled
}

// revokeAll revokes the leases of a closed session. Since these may last for hours, revokeAll
// keeps trying for up to longestGrant. Close doesn't wait for it.
func (ls *leases) revokeAll(all []lease) {
	ctx, cancel := context.WithTimeout(context.Background(), longestGrant)
	defer cancel()
	for some := range slices.Chunk(all, mostAtOnce) {
		var wg sync.WaitGroup
		for _, l := range some {
			wg.Go(func() { _ = ls.store.revoke(ctx, l.id) })
		}
		wg.Wait()
	}
}

package etcdbackend

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A lease is a lease in etcd. It serves one hold at a time.
type lease struct {
	id    int64
	ttl   int64     // in seconds
	since time.Time // it lasts for ttl from then at least
}

// leases grants the leases of a session, and keeps those that were given back for a while: a hold whose
// requests all have their answers leaves nothing that could be attached to its lease late, so that
// the next hold can have it. Granting one and revoking it are two writes.
//
// What a caller doesn't wait for any more is granted for the next one.
type leases struct {
	store *store
	ctx   context.Context // ends with the session
	stop  context.CancelFunc

	mu       sync.Mutex
	shelves  map[int64]*shelf      // by ttl
	dropped  []lease               // to be revoked
	timed    map[int64]*time.Timer // of the leases that are to be revoked at a time
	sweeping bool                  // a goroutine sees to what is idle or dropped
	closed   bool
	running  int           // goroutines
	settled  chan struct{} // is closed when there are none, if somebody waits for that
}

// A shelf is leases of one length.
type shelf struct {
	idle     []lease        // the last one that was given back is the last
	waiting  []chan granted // each for an answer; no more of them than are being granted
	granting int
}

type granted struct {
	lease lease
	err   error
}

const (
	longestIdle = 15 * time.Second
	sweepEvery  = time.Second
	mostAtOnce  = 32 // leases that a closed session revokes side by side
)

func newLeases(st *store) *leases {
	ctx, stop := context.WithCancel(context.Background())
	return &leases{
		store: st, ctx: ctx, stop: stop,
		shelves: make(map[int64]*shelf), timed: make(map[int64]*time.Timer),
	}
}

// usable says whether enough is left of a lease to use it.
func (l lease) usable(now time.Time) bool {
	return now.Sub(l.since) < min(time.Duration(l.ttl)*time.Second/2, longestIdle)
}

// ready says whether a lease can be had at once.
func (ls *leases) ready(ttl int64) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	sh := ls.shelves[ttl]
	return sh != nil && len(sh.idle) > 0 && sh.idle[len(sh.idle)-1].usable(time.Now())
}

// get returns a lease of ttl seconds, or more if the server grants none so short. Nothing is attached
// to it. It began some time ago.
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

// take returns a lease that is idle, or a channel for one that is being granted.
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
		if ls.closed { // what is left of a hold may still be moved to another lease
			ctx = context.Background()
		}
		ls.run(func() { ls.grant(ctx, sh, ttl) })
	}
	return lease{}, answer
}

// shelf returns the leases of one length. ls.mu is held.
func (ls *leases) shelf(ttl int64) *shelf {
	sh := ls.shelves[ttl]
	if sh == nil {
		sh = new(shelf)
		ls.shelves[ttl] = sh
	}
	return sh
}

// leave gives a wait up. It returns false if there is an answer.
func (ls *leases) leave(ttl int64, answer chan granted) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	sh := ls.shelf(ttl)
	for i, w := range sh.waiting {
		if w == answer {
			sh.waiting = append(sh.waiting[:i], sh.waiting[i+1:]...)
			return true
		}
	}
	return false
}

// fresh grants a lease that has begun just now, for who can't have one that was used before: it is never given back.
func (ls *leases) fresh(ctx context.Context, ttl int64) (l lease, err error) {
	l = newLease(ttl)
	l.ttl, err = ls.store.grant(ctx, l.id, ttl)
	if err != nil && backend.KindOf(err) == backend.Unknown {
		l.ttl = ttl
		ls.discard(l)
	}
	return l, err
}

// newLease returns a lease to be granted.
func newLease(ttl int64) lease { return lease{id: 1 + rand.Int64N(1<<62), ttl: ttl, since: time.Now()} }

// grant makes a lease for whoever waits for one. Its id is known before it is sent, so that it can be
// revoked whatever becomes of the answer.
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
		if err != nil {
			err = notDone(err)
		}
		sh.waiting[0] <- granted{l, err}
		sh.waiting = sh.waiting[1:]
	case err == nil:
		ls.shelve(l)
	}
}

// longestGrant is how long a lease may take to be granted, or to be revoked, when nobody waits for
// that any more.
const longestGrant = 10 * time.Second

// put gives back a lease that nothing is attached to, and no request that was sent will be.
func (ls *leases) put(l lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.shelve(l)
}

// shelve keeps a lease for the next who needs one. ls.mu is held.
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

// discard gives back leases that are to be revoked.
func (ls *leases) discard(all ...lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range all {
		ls.drop(l)
	}
}

// revokeIn revokes a lease after so long. It runs out by itself if the session is closed by then,
// or if that is so long that some seconds more don't matter.
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

// longestTimed bounds how many leases are remembered that are to be revoked at a time.
const longestTimed = 10 * time.Minute

// distrust drops all leases that are idle, since one that was is gone: the others may be, too.
func (ls *leases) distrust() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, sh := range ls.shelves {
		ls.dropped = append(ls.dropped, sh.idle...)
		sh.idle = nil
	}
	ls.sweep()
}

// drop lets a lease be revoked. ls.mu is held.
func (ls *leases) drop(l lease) {
	ls.dropped = append(ls.dropped, l)
	if ls.closed {
		due := ls.due(time.Now())
		ls.run(func() { ls.revokeAll(due) })
		return
	}
	ls.sweep()
}

// sweep sees to it that what isn't used is revoked. ls.mu is held.
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

// sweepOnce revokes what is not used any more. It returns false if nothing is left.
func (ls *leases) sweepOnce() bool {
	ls.mu.Lock()
	now := time.Now()
	due := ls.due(now)
	ls.mu.Unlock()
	var failed []lease
	for _, l := range due {
		ctx, cancel := context.WithTimeout(ls.ctx, longestPatience)
		// What has run out by itself need not be revoked.
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

// due returns what is to be revoked, and forgets it. ls.mu is held.
func (ls *leases) due(now time.Time) []lease {
	due := ls.dropped
	ls.dropped = nil
	for ttl, sh := range ls.shelves {
		// The longest idle come first.
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

// close revokes what is idle, and another lease if its id isn't 0, in the background: close itself
// waits for nothing. What can't be revoked within longestGrant runs out.
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

// background runs what nobody waits for, until it is done or the session is closed.
func (ls *leases) background(f func(context.Context)) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.run(func() {
		ctx, cancel := context.WithTimeout(ls.ctx, longestGrant)
		defer cancel()
		f(ctx)
	})
}

// whileOpen runs something that ends with the session.
func (ls *leases) whileOpen(f func(context.Context)) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.run(func() { f(ls.ctx) })
}

// run starts a goroutine. ls.mu is held.
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

// settle waits until no goroutine is left.
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

// revokeAll revokes what a closed session leaves. A lease may be one of hours, so a slow store has
// longer for it than Close waits.
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

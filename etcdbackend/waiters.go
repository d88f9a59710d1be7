package etcdbackend

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// waiters makes sessions that wait for a lock try to get it in order of arrival. It holds the
// session's place in the queue for each lock that the session waits for. While a session is
// subscribed to a lock, it keeps a key of its own, in addition to the lock's key. When the lock is
// released, all sessions are notified. The first tries at once. Every other session waits some time
// for each one ahead of it, and tries only if the lock hasn't been taken by then. So the sessions
// try one after the other, in order. A session that died while it waited delays the others only by
// that time.
//
// The order is only a courtesy. A wrong order costs one needless attempt, or a few milliseconds.
type waiters struct {
	store  *store
	leases *leases

	mu    sync.Mutex // not held during a request or a callback
	lease lease      // the lease of the keys
	all   map[string]*waiter
	delay time.Duration // how long a session needs, at most, to take a freed lock
}

// A waiter records a session's wait for a lock.
type waiter struct {
	subs  int    // the number of the session's subscriptions
	key   []byte // the session's key, perhaps already in etcd; nil if there is none
	rev   int64  // the revision at which ahead was counted
	ahead int
}

const (
	waiterTTL     = 15 // seconds
	shortestDelay = 10 * time.Millisecond
	longestDelay  = 100 * time.Millisecond
	mostDelays    = 10 // maximum number of delays that a session waits for
	joinWithin    = time.Second
)

func newWaiters(st *store, ls *leases) *waiters {
	return &waiters{store: st, leases: ls, all: make(map[string]*waiter), delay: shortestDelay}
}

// enter adds a subscription.
func (ws *waiters) enter(name string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.all[name]
	if w == nil {
		w = new(waiter)
		ws.all[name] = w
	}
	w.subs++
}

// leave removes a subscription that was closed. It doesn't wait for the store.
func (ws *waiters) leave(name string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.all[name]
	if w.subs--; w.subs > 0 {
		return
	}
	delete(ws.all, name)
	if w.key != nil {
		ws.remove(w.key)
	}
}

// remove deletes a key in the background. If that fails, the key expires with its lease.
func (ws *waiters) remove(key []byte) {
	ws.leases.background(func(ctx context.Context) {
		_, _ = insist(ctx, patience(0), ws.store.kv.DeleteRange, &pb.DeleteRangeRequest{Key: key})
	})
}

// join puts the session at the end of the queue for a lock, if it is subscribed and has no key. If
// that fails, the session tries to get the lock as if it were the first.
func (ws *waiters) join(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, joinWithin)
	defer cancel()
	w, key := ws.vacant(name)
	if w == nil {
		return
	}
	l, err := ws.current(ctx)
	if err != nil {
		ws.served(name, key)
		return
	}
	begin := time.Now()
	res, err := insist(ctx, patience(0), ws.store.kv.Txn, &pb.TxnRequest{Success: []*pb.RequestOp{
		putOp(key, nil, l.id),
		ws.store.countWaiting(name),
	}})
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if gone(err) && ws.lease == l {
		ws.lease = lease{}
	}
	if ws.all[name] != w {
		ws.remove(key) // the session has since left, perhaps before the key was written
		return
	}
	switch {
	case err != nil && backend.KindOf(err) != backend.Unknown:
		w.key = nil
		return
	case err != nil:
		return
	}
	ws.delay = min(max(ws.delay/2, 2*time.Since(begin), shortestDelay), longestDelay)
	w.rev, w.ahead = res.Header.Revision, max(waiting(res, 1)-1, 0)
}

// vacant chooses the key with which the session will wait for a lock, and returns the waiter and
// the key. If the session doesn't wait for the lock, or already has a key, vacant returns nil.
func (ws *waiters) vacant(name string) (*waiter, []byte) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.all[name]
	if w == nil || w.key != nil {
		return nil, nil
	}
	w.key = append(ws.store.waitingKeys(name), fmt.Sprintf("%016x", rand.Uint64())...)
	w.rev, w.ahead = 0, 0
	return w, w.key
}

// current returns the lease for new keys. If the current lease is more than half over, it gets a
// new one first.
func (ws *waiters) current(ctx context.Context) (lease, error) {
	ws.mu.Lock()
	l := ws.lease
	ws.mu.Unlock()
	if time.Since(l.since) < waiterTTL*time.Second/2 {
		return l, nil
	}
	l, err := ws.leases.get(ctx, waiterTTL)
	if err != nil {
		return lease{}, err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.lease = l
	return l, nil
}

// keep renews the lease of the session's waiting keys, if there are any. When the session no longer
// waits for any lock, keep lets the lease expire.
func (ws *waiters) keep(k *keeper) {
	ws.mu.Lock()
	l, waiting := ws.lease, len(ws.all) > 0
	ws.mu.Unlock()
	if !waiting || l.id == 0 {
		return
	}
	begin := time.Now()
	k.send([]*ask{{lease: l.id, answer: func(ttl int64, err error) {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if err == nil && ttl > 0 && ws.lease.id == l.id {
			ws.lease.since = begin
		}
	}}}, l.ttl)
}

// own returns the key with which the session waits for a lock, or nil.
func (ws *waiters) own(name string) []byte {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.all[name]; w != nil {
		return w.key
	}
	return nil
}

// served records that a key of the session doesn't exist. Either the session acquired the lock,
// which deleted the key, or it couldn't create the key.
func (ws *waiters) served(name string, key []byte) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.all[name]; w != nil && key != nil && slices.Equal(w.key, key) {
		w.key, w.ahead = nil, 0
	}
}

// subscribed reports whether the session has a subscription to a lock.
func (ws *waiters) subscribed(name string) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.all[name] != nil
}

// moved records that the first of the waiting sessions took the lock, at revision rev.
func (ws *waiters) moved(name string, rev int64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.all[name]; w != nil && rev > w.rev {
		w.rev, w.ahead = rev, max(w.ahead-1, 0)
	}
}

// close returns the lease of all keys. The caller must revoke it, which deletes the keys.
func (ws *waiters) close() lease {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.lease
}

// unknown records that the session may have missed events, and so no longer knows who is waiting.
// It then regards no other session as ahead.
func (ws *waiters) unknown(name string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.all[name]; w != nil {
		w.ahead = 0
	}
}

// courtesy returns how long the session waits after a lock was freed at revision rev, so that the
// sessions ahead of it can take the lock first.
func (ws *waiters) courtesy(name string, rev int64) time.Duration {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.all[name]; w != nil && rev > w.rev {
		return time.Duration(min(w.ahead, mostDelays)) * ws.delay
	}
	return 0
}

// waitingKeys returns the prefix of the keys of sessions that wait for a lock.
func (st *store) waitingKeys(name string) []byte { return append(st.key(name), 0) }

// countWaiting counts the keys of sessions that wait for a lock. If the name of another lock begins
// with this name and a zero byte, its keys are also counted, so the count is too high.
func (st *store) countWaiting(name string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
		Key: st.waitingKeys(name), RangeEnd: append(st.key(name), 1), CountOnly: true,
	}}}
}

// waiting returns the number of waiting sessions that a transaction counted.
func waiting(res *pb.TxnResponse, i int) int {
	if i >= len(res.Responses) {
		return 0
	}
	return int(res.Responses[i].GetResponseRange().GetCount())
}

// someWaiting reads the first two keys of sessions that wait for a lock. Two are enough to find
// another session's key.
func (st *store) someWaiting(name string) *pb.RequestOp {
	op := st.countWaiting(name)
	r := op.GetRequestRange()
	r.CountOnly, r.KeysOnly, r.Limit = false, true, 2
	return op
}

// others returns the number of other sessions that wait for a lock, according to the keys that a
// release has read. The session's own key may be missing among them, since it is written in the
// background. The result is at most 1, since only the first session tries at once.
func (ws *waiters) others(name string, keys []*mvccpb.KeyValue) int {
	own := ws.own(name)
	if slices.ContainsFunc(keys, func(kv *mvccpb.KeyValue) bool {
		return !slices.Equal(kv.Key, own)
	}) {
		return 1
	}
	return 0
}

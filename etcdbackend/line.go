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

// A line holds a session's places among the sessions that wait for the same locks. While a session
// is subscribed to a lock, it keeps a key besides the lock's key. When the lock is released, all
// sessions are notified. The first in line tries at once. Every other session waits some time for
// each one ahead of it, and tries only if the lock hasn't been taken by then. So the sessions try
// one after the other, in order. A session that died while it waited delays the others only by that
// time.
//
// The order is only a courtesy. A wrong order costs one needless attempt, or a few milliseconds.
type line struct {
	store  *store
	leases *leases

	mu     sync.Mutex // not held during a request or a callback
	lease  lease      // the lease of the keys
	places map[string]*place
	turn   time.Duration // an upper bound for the time to take a freed lock
}

// A place is a session's place in the line for a lock.
type place struct {
	subs  int    // the number of the session's subscriptions
	key   []byte // the session's key, which may be in etcd; nil: there is none
	rev   int64  // the revision at which ahead was counted
	ahead int
}

const (
	placeTTL     = 15 // seconds
	shortestTurn = 10 * time.Millisecond
	longestTurn  = 100 * time.Millisecond
	mostTurns    = 10 // a session waits for no more turns than this
	standWithin  = time.Second
)

func newLine(st *store, ls *leases) *line {
	return &line{store: st, leases: ls, places: make(map[string]*place), turn: shortestTurn}
}

// enter adds a subscription.
func (ln *line) enter(name string) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	p := ln.places[name]
	if p == nil {
		p = new(place)
		ln.places[name] = p
	}
	p.subs++
}

// leave removes a subscription that was closed. It doesn't wait for the store.
func (ln *line) leave(name string) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	p := ln.places[name]
	if p.subs--; p.subs > 0 {
		return
	}
	delete(ln.places, name)
	if p.key != nil {
		ln.remove(p.key)
	}
}

// remove deletes a key in the background. If that fails, the key ends with its lease.
func (ln *line) remove(key []byte) {
	ln.leases.background(func(ctx context.Context) {
		_, _ = insist(ctx, patience(0), ln.store.kv.DeleteRange, &pb.DeleteRangeRequest{Key: key})
	})
}

// stand takes the last place in the line for a lock, if the session is subscribed and has no place.
// If that fails, the session tries for the lock as if it were the first.
func (ln *line) stand(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, standWithin)
	defer cancel()
	p, key := ln.vacant(name)
	if p == nil {
		return
	}
	l, err := ln.current(ctx)
	if err != nil {
		ln.served(name, key)
		return
	}
	begin := time.Now()
	res, err := insist(ctx, patience(0), ln.store.kv.Txn, &pb.TxnRequest{Success: []*pb.RequestOp{
		{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Lease: l.id}}},
		ln.store.countWaiting(name),
	}})
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if gone(err) && ln.lease == l {
		ln.lease = lease{}
	}
	if ln.places[name] != p {
		ln.remove(key) // the session has since left, perhaps before the key was written
		return
	}
	switch {
	case err != nil && backend.KindOf(err) != backend.Unknown:
		p.key = nil
		return
	case err != nil:
		return
	}
	ln.turn = min(max(ln.turn/2, 2*time.Since(begin), shortestTurn), longestTurn)
	p.rev, p.ahead = res.Header.Revision, max(waiting(res, 1)-1, 0)
}

// vacant returns the session's place if the place has no key, and gives it a new one.
func (ln *line) vacant(name string) (*place, []byte) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	p := ln.places[name]
	if p == nil || p.key != nil {
		return nil, nil
	}
	p.key = append(ln.store.waitingKeys(name), fmt.Sprintf("%016x", rand.Uint64())...)
	p.rev, p.ahead = 0, 0
	return p, p.key
}

// current returns the lease for new keys, which is a new one if half of the present lease has
// passed.
func (ln *line) current(ctx context.Context) (lease, error) {
	ln.mu.Lock()
	l := ln.lease
	ln.mu.Unlock()
	if time.Since(l.since) < placeTTL*time.Second/2 {
		return l, nil
	}
	l, err := ln.leases.get(ctx, placeTTL)
	if err != nil {
		return lease{}, err
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	ln.lease = l
	return l, nil
}

// keep renews the lease of the keys while there are any. When the session no longer waits, the
// lease ends.
func (ln *line) keep(k *keeper) {
	ln.mu.Lock()
	l, waiting := ln.lease, len(ln.places) > 0
	ln.mu.Unlock()
	if !waiting || l.id == 0 {
		return
	}
	begin := time.Now()
	k.send([]*ask{{lease: l.id, answer: func(ttl int64, err error) {
		ln.mu.Lock()
		defer ln.mu.Unlock()
		if err == nil && ttl > 0 && ln.lease.id == l.id {
			ln.lease.since = begin
		}
	}}}, l.ttl)
}

// own returns the session's key in the line for a lock, or nil.
func (ln *line) own(name string) []byte {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if p := ln.places[name]; p != nil {
		return p.key
	}
	return nil
}

// served records that a key of the session doesn't exist, because the session acquired the lock,
// which deleted the key, or couldn't create the key.
func (ln *line) served(name string, key []byte) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if p := ln.places[name]; p != nil && key != nil && slices.Equal(p.key, key) {
		p.key, p.ahead = nil, 0
	}
}

// subscribed reports whether the session has a subscription to a lock.
func (ln *line) subscribed(name string) bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.places[name] != nil
}

// moved records that the lock was taken at a revision, so the line has moved on.
func (ln *line) moved(name string, rev int64) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if p := ln.places[name]; p != nil && rev > p.rev {
		p.rev, p.ahead = rev, max(p.ahead-1, 0)
	}
}

// close returns the lease of all keys. The caller must revoke it, which deletes the keys.
func (ln *line) close() lease {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.lease
}

// unknown records that the session may have missed changes of the line. Then no other session
// counts as ahead.
func (ln *line) unknown(name string) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if p := ln.places[name]; p != nil {
		p.ahead = 0
	}
}

// courtesy returns how long the session leaves a lock, which was freed at a revision, to the
// sessions ahead of it.
func (ln *line) courtesy(name string, rev int64) time.Duration {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if p := ln.places[name]; p != nil && rev > p.rev {
		return time.Duration(min(p.ahead, mostTurns)) * ln.turn
	}
	return 0
}

// waitingKeys returns the prefix of the keys of sessions that wait for a lock.
func (st *store) waitingKeys(name string) []byte { return append(st.key(name), 0) }

// countWaiting counts the keys of sessions that wait for a lock. If the name of another lock begins
// with this name and a zero byte, its keys are also counted, and the line seems longer.
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

// others returns the number of other sessions that wait for a lock, from the keys that a release
// read. The session's own key may be missing there, since it is put in the background. The result
// is at most 1, since only the first session in line tries at once.
func (ln *line) others(name string, keys []*mvccpb.KeyValue) int {
	own := ln.own(name)
	if slices.ContainsFunc(keys, func(kv *mvccpb.KeyValue) bool {
		return !slices.Equal(kv.Key, own)
	}) {
		return 1
	}
	return 0
}

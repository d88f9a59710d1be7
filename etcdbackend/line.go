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

// A line is where a session stands among those who wait for the same locks. While it is subscribed to a
// lock it keeps a key beside the lock's. When that is released all are told, and the first tries at
// once; the others let some time pass for each who came before them, and try only if nobody has
// taken the lock by then. So one comes at a time, in order, and nobody depends on another that died
// while it waited.
//
// The order is a courtesy: what is wrong with it costs a try in vain, or some milliseconds.
type line struct {
	store  *store
	leases *leases

	mu     sync.Mutex // never held while anything is sent or called
	lease  lease      // that the keys are attached to
	places map[string]*place
	turn   time.Duration // what it takes to take a lock that was freed, or more
}

// A place is that of a session in the line for a lock.
type place struct {
	subs  int    // the subscriptions that it is for
	key   []byte // in etcd, perhaps; nil if it isn't
	rev   int64  // in which it was last known how many are ahead
	ahead int
}

const (
	placeTTL     = 15 // seconds
	shortestTurn = 10 * time.Millisecond
	longestTurn  = 100 * time.Millisecond
	mostTurns    = 10 // that somebody waits though nobody takes the lock
	standWithin  = time.Second
)

func newLine(st *store, ls *leases) *line {
	return &line{store: st, leases: ls, places: make(map[string]*place), turn: shortestTurn}
}

// enter notes a subscription.
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

// leave notes that a subscription is closed. It doesn't wait for the store.
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

// remove deletes a key in the background. What can't be deleted goes with its lease.
func (ln *line) remove(key []byte) {
	ln.leases.background(func(ctx context.Context) {
		_, _ = insist(ctx, patience(0), ln.store.kv.DeleteRange, &pb.DeleteRangeRequest{Key: key})
	})
}

// stand takes the last place in the line for a lock, if the session is subscribed and has none. If
// that fails it tries with the first.
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
		ln.remove(key) // it has left meanwhile, perhaps before this was written
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

// vacant returns the place of a session that has no key in the line, and its key from now on.
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

// current returns the lease that keys are attached to.
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

// keep lets the lease of the keys begin anew while there are any. When nobody waits any more it runs
// out.
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

// served notes that a key of the session's isn't there any more, since it has the lock, or never was.
func (ln *line) served(name string, key []byte) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if p := ln.places[name]; p != nil && key != nil && slices.Equal(p.key, key) {
		p.key, p.ahead = nil, 0
	}
}

// subscribed says whether the session is told of what happens to a lock.
func (ln *line) subscribed(name string) bool {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.places[name] != nil
}

// moved notes that somebody took the lock, in a revision: the line has moved on.
func (ln *line) moved(name string, rev int64) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if p := ln.places[name]; p != nil && rev > p.rev {
		p.rev, p.ahead = rev, max(p.ahead-1, 0)
	}
}

// close returns the lease of all keys, with which they go.
func (ln *line) close() lease {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	return ln.lease
}

// unknown notes that the line may have moved on unnoticed.
func (ln *line) unknown(name string) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if p := ln.places[name]; p != nil {
		p.ahead = 0
	}
}

// courtesy returns how long to leave a lock that was freed, in a revision, to those who are ahead.
func (ln *line) courtesy(name string, rev int64) time.Duration {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if p := ln.places[name]; p != nil && rev > p.rev {
		return time.Duration(min(p.ahead, mostTurns)) * ln.turn
	}
	return 0
}

// waitingKeys returns what the keys of those who wait for a lock begin with.
func (st *store) waitingKeys(name string) []byte { return append(st.key(name), 0) }

// countWaiting counts the keys of those who wait for a lock. Where its name and a zero byte begin the
// name of another lock, theirs count, too, and the line seems longer.
func (st *store) countWaiting(name string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
		Key: st.waitingKeys(name), RangeEnd: append(st.key(name), 1), CountOnly: true,
	}}}
}

// waiting returns how many waited when a transaction counted them.
func waiting(res *pb.TxnResponse, i int) int {
	if i >= len(res.Responses) {
		return 0
	}
	return int(res.Responses[i].GetResponseRange().GetCount())
}

// someWaiting reads the first two keys of those who wait for a lock: enough to say whether one of them is another's.
func (st *store) someWaiting(name string) *pb.RequestOp {
	op := st.countWaiting(name)
	r := op.GetRequestRange()
	r.CountOnly, r.KeysOnly, r.Limit = false, true, 2
	return op
}

// others says whether others wait for a lock, as a release has found which read some of the keys of those who wait: the session's own
// may be among them or not, since it is put there in the background. It says one for any number: the line sees to it that one of them comes at a time.
func (ln *line) others(name string, keys []*mvccpb.KeyValue) int {
	own := ln.own(name)
	if slices.ContainsFunc(keys, func(kv *mvccpb.KeyValue) bool { return !slices.Equal(kv.Key, own) }) {
		return 1
	}
	return 0
}

package etcdbackend

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

const (
	maxReads     = 128 // keys in one transaction: what a server allows if it isn't told otherwise
	readsAtOnce  = 4   // transactions
	writesAtOnce = 8   // of the few holds of a batch that must be written
)

// A batch is a call of RenewBatch.
type batch struct {
	*session
	ctx     context.Context
	reqs    []backend.RenewRequest
	answer  func(int, backend.RenewResult, error)
	running sync.WaitGroup // requests without an answer
	writes  chan struct{}  // limits how many writes go on
	begin   time.Time

	mu   sync.Mutex
	asks []*ask // all that were sent
}

func (s *session) Renew(ctx context.Context, req backend.RenewRequest) (res backend.RenewResult, err error) {
	s.RenewBatch(ctx, []backend.RenewRequest{req}, func(_ int, r backend.RenewResult, e error) { res, err = r, e })
	return res, err
}

// RenewBatch looks who has the locks, and lets the leases of those begin anew to which they belong. So
// it notices also that a key was deleted, though the hold's lease lives.
func (s *session) RenewBatch(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) {
	b := &batch{session: s, ctx: ctx, reqs: reqs, answer: answer, writes: make(chan struct{}, writesAtOnce), begin: time.Now()}
	b.running.Add(len(reqs))
	all := make([]int, 0, len(reqs))
	for i, req := range reqs {
		if err := check(ctx, req.Kind); err != nil {
			b.done(i, false, err)
			continue
		}
		all = append(all, i)
	}
	stop := context.AfterFunc(ctx, b.abandon)
	defer stop()
	var readers sync.WaitGroup
	free := make(chan struct{}, readsAtOnce)
	for some := range slices.Chunk(all, maxReads) {
		free <- struct{}{}
		readers.Go(func() {
			b.read(some)
			<-free
		})
	}
	readers.Wait()
	b.running.Wait()
}

func (b *batch) done(i int, held bool, err error) {
	b.answer(i, backend.RenewResult{Held: held}, err)
	b.running.Done()
}

// read looks at the locks of some requests. What must be sent for them is sent before it returns.
func (b *batch) read(some []int) {
	ids := make([]holdID, len(some))
	for i, r := range some {
		ids[i] = b.id(r)
	}
	kvs, err := b.store.readAll(b.ctx, ids, b.store.ttl(b.reqs[some[0]].Lease))
	switch {
	case err == nil:
		b.keep(some, kvs)
	case len(some) > 1 && backend.KindOf(err) == backend.Refused:
		// Too many for this server, or one of them is not for us to read.
		b.read(some[:len(some)/2])
		b.read(some[len(some)/2:])
	default:
		for _, r := range some {
			b.done(r, false, err)
		}
	}
}

// keep lets leases begin anew.
func (b *batch) keep(some []int, kvs []*mvccpb.KeyValue) {
	var asks []*ask
	shortest := int64(0)
	for i, r := range some {
		id, ttl := b.id(r), b.store.ttl(b.reqs[r].Lease)
		if kvs[i] == nil && b.reqs[r].Kind == backend.Fair {
			b.apart(func() {
				held, err := b.takeTurn(b.ctx, id, ttl)
				b.done(r, held, err)
			})
			continue
		}
		if kvs[i] == nil {
			b.apart(func() { b.done(r, false, b.conflicts(b.ctx, id, ttl)) })
			continue
		}
		key, err := b.own(id, kvs[i])
		if err != nil || key.free() {
			b.done(r, false, err)
			continue
		}
		part := id.role == permitRole && key.count != b.reqs[r].Permits
		if part || key.lease == 0 || b.keeper.closed() || id.role.onlyUp() && !b.lastsFor(id, key, ttl) {
			b.rewrite(r, key, ttl)
			continue
		}
		asks = append(asks, &ask{lease: key.lease, answer: func(granted int64, err error) { b.kept(r, key, ttl, granted, err) }})
		if shortest == 0 || ttl < shortest {
			shortest = ttl
		}
	}
	b.mu.Lock()
	b.asks = append(b.asks, asks...)
	b.mu.Unlock()
	b.keeper.send(asks, shortest)
	if b.ctx.Err() != nil {
		b.abandon() // it may have been called just before these were there
	}
}

// id returns the hold that is to be renewed.
func (b *batch) id(r int) holdID { return idOf(b.reqs[r].Kind, b.reqs[r].Name, b.reqs[r].Owner) }

// own returns the record of a key if it is that of a hold; else a free one.
func (b *batch) own(id holdID, kv *mvccpb.KeyValue) (record, error) {
	if kv == nil {
		return record{}, nil
	}
	if guess := b.holds.guess(id); !guess.free() && guess.rev == kv.ModRevision && guess.lease == kv.Lease {
		return guess, nil // what we wrote needn't be decoded
	}
	key, err := decodeOf(id, kv)
	if err != nil || key.owner != id.owner {
		return record{}, err
	}
	return key, nil
}

// kept notes the answer for a lease.
func (b *batch) kept(r int, key record, ttl, granted int64, err error) {
	switch {
	case err != nil:
		b.done(r, false, err)
	case granted != ttl:
		b.rewrite(r, key, ttl)
	default:
		b.holds.renewed(b.id(r), key.lease, ttl, b.begin)
		b.done(r, true, nil)
	}
}

// rewrite moves a key to another lease, where a hold is to be prolonged by another time than so far.
// If its lease has ended, it finds out whether that was the end of the hold.
func (b *batch) rewrite(r int, key record, ttl int64) {
	b.apart(func() {
		a := &attempt{id: b.id(r), ttl: ttl}
		var err error
		for err == nil {
			if a.id.role == permitRole {
				if key, err = b.whole(b.ctx, a, key, b.reqs[r].Permits); err != nil {
					break
				}
			}
			if key.free() || key.owner != a.id.owner {
				err = b.mistaken(b.ctx, a, key)
				break
			}
			var done bool
			if done, key, err = b.write(b.ctx, a, key, key); done {
				b.done(r, true, nil)
				return
			}
		}
		b.done(r, false, err)
	})
}

// apart does what the others of a batch needn't wait for.
func (b *batch) apart(f func()) {
	go func() {
		b.writes <- struct{}{}
		defer func() { <-b.writes }()
		f()
	}()
}

// abandon answers all that waits for an answer about its lease.
func (b *batch) abandon() {
	b.mu.Lock()
	asks := b.asks
	b.mu.Unlock()
	b.keeper.abandon(asks, b.ctx.Err())
}

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
	maxReads     = 128 // keys read in one transaction; the default limit of etcd servers
	readsAtOnce  = 4   // concurrent transactions that read
	writesAtOnce = 8   // concurrent writes, for the few holds of a batch that need one
)

// A batch is the state of one call to RenewBatch.
type batch struct {
	*session
	ctx     context.Context
	reqs    []backend.RenewRequest
	answer  func(int, backend.RenewResult, error)
	running sync.WaitGroup // counts requests without an answer
	writes  chan struct{}  // limits how many writes are under way
	begin   time.Time

	mu   sync.Mutex
	asks []*ask // all asks that were sent
}

func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (res backend.RenewResult, err error) {
	s.RenewBatch(ctx, []backend.RenewRequest{req}, func(_ int, r backend.RenewResult, e error) {
		res, err = r, e
	})
	return res, err
}

// RenewBatch reads the keys of the locks, and renews the leases of the requests' owners. It reads
// the keys because the key of a hold may have been deleted although its lease still exists.
func (s *session) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	b := &batch{
		session: s, ctx: ctx, reqs: reqs, answer: answer, writes: make(chan struct{}, writesAtOnce),
		begin: time.Now(),
	}
	b.running.Add(len(reqs))
	all := make([]int, 0, len(reqs))
	for i, req := range reqs {
		if _, err := check(ctx, req.Kind); err != nil {
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

// read reads the keys of the given requests' holds, and starts the renewals that they need. It
// doesn't wait for the renewals.
func (b *batch) read(some []int) {
	ids := make([]holdID, len(some))
	for i, r := range some {
		ids[i] = b.attempt(r).id
	}
	kvs, err := b.store.readAll(b.ctx, ids, b.store.ttl(b.reqs[some[0]].Lease))
	switch {
	case err == nil:
		b.keep(some, kvs)
	case len(some) > 1 && backend.KindOf(err) == backend.Refused:
		// Either the server doesn't accept so many keys at once, or the user isn't permitted to
		// read one of them.
		b.read(some[:len(some)/2])
		b.read(some[len(some)/2:])
	default:
		for _, r := range some {
			b.done(r, false, err)
		}
	}
}

// keep renews the leases of the given requests. kvs contains the keys of their holds, as just read.
// If a key needs another lease, keep rewrites it.
func (b *batch) keep(some []int, kvs [][]*mvccpb.KeyValue) {
	var asks []*ask
	shortest := int64(0)
	for i, r := range some {
		a := b.attempt(r)
		kv := first(kvs[i])
		if kv == nil {
			b.apart(func() {
				if a.fair {
					held, err := b.takeLock(b.ctx, a)
					b.done(r, held, err)
				} else {
					b.done(r, false, b.conflicts(b.ctx, a))
				}
			})
			continue
		}
		key, err := b.own(a.id, kv)
		if err != nil || key.free() {
			b.done(r, false, err)
			continue
		}
		part := a.permits && key.count != b.reqs[r].Permits
		if part || key.lease == 0 || b.keeper.closed() ||
			a.onlyUp && !b.lastsFor(a.id, key, a.ttl) {
			b.rewrite(r, a, key)
			continue
		}
		asks = append(asks, &ask{lease: key.lease, answer: func(granted int64, err error) {
			b.kept(r, a, key, granted, err)
		}})
		if shortest == 0 || a.ttl < shortest {
			shortest = a.ttl
		}
	}
	b.mu.Lock()
	b.asks = append(b.asks, asks...)
	b.mu.Unlock()
	b.keeper.send(asks, shortest)
	if b.ctx.Err() != nil {
		b.abandon() // abandon may have run just before these asks were added
	}
}

// attempt returns an attempt to renew a hold.
func (b *batch) attempt(r int) *attempt {
	req := b.reqs[r]
	return kindOf(req.Kind).attempt(req.Name, req.Owner, b.store.ttl(req.Lease))
}

// own returns the record stored under a hold's key. If there is no key, or it belongs to another
// owner, own returns the zero record.
func (b *batch) own(id holdID, kv *mvccpb.KeyValue) (record, error) {
	if kv == nil {
		return record{}, nil
	}
	if guess := b.holds.guess(id); !guess.free() && guess.rev == kv.ModRevision &&
		guess.lease == kv.Lease {
		return guess, nil // this session wrote it, so it needn't be decoded
	}
	key, err := decodeOf(id, kv)
	if err != nil || key.owner != id.owner {
		return record{}, err
	}
	return key, nil
}

// kept handles the result of the keep-alive for a request, and answers the request. If the lease
// doesn't have the length that the request needs, kept rewrites the hold's key first.
func (b *batch) kept(r int, a *attempt, key record, granted int64, err error) {
	switch {
	case err != nil:
		b.done(r, false, err)
	case granted != a.ttl:
		b.rewrite(r, a, key)
	default:
		b.holds.renewed(a.id, key.lease, a.ttl, b.begin)
		b.done(r, true, nil)
	}
}

// rewrite renews a hold by writing its key. It attaches the key to a new lease if the old one has
// the wrong length. If the hold doesn't have the requested number of permits, rewrite releases its
// permits. If the old lease has ended, rewrite finds out whether the hold has ended
// too.
func (b *batch) rewrite(r int, a *attempt, key record) {
	b.apart(func() {
		held, _, err := transact(b.ctx, b.session, a, key, nil, itself,
			func(key *record) (_ *change, err error) {
				if a.permits {
					*key, err = b.whole(b.ctx, a, *key, b.reqs[r].Permits)
				}
				if err == nil && (key.free() || key.owner != a.id.owner) {
					return nil, b.mistaken(b.ctx, a, *key)
				}
				return &change{old: *key, next: *key}, err
			})
		b.done(r, held, err)
	})
}

// apart runs f in a goroutine, so that other requests of a batch don't wait for it.
func (b *batch) apart(f func()) {
	go func() {
		b.writes <- struct{}{}
		defer func() { <-b.writes }()
		f()
	}()
}

// abandon answers every [ask] that still waits.
func (b *batch) abandon() {
	b.mu.Lock()
	asks := b.asks
	b.mu.Unlock()
	b.keeper.abandon(asks, b.ctx.Err())
}

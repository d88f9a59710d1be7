package quorumbackend

import (
	"context"
	"slices"
	"sync"

	"github.com/seed951563bd/distsync/backend"
)

// A renewal is the state of one request in a batch.
type renewal struct {
	poll
	h     *hold // nil if the session doesn't know the hold
	req   backend.RenewRequest
	out   set // stores without an answer
	fails []failure
	done  bool
}

// RenewBatch implements [backend.BatchRenewer]. Each store gets its requests in one batch.
func (s *session) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(
		i int, res backend.RenewResult, err error,
	),
) {
	b := &batch{s: s, answer: answer, renewals: make([]renewal, len(reqs))}
	for i, req := range reqs {
		if err := s.begin(ctx, req.Kind); err != nil {
			b.renewals[i].done = true
			answer(i, backend.RenewResult{}, err)
			continue
		}
		b.open++
		b.renewals[i] = s.renewal(req)
	}
	b.ask(ctx)
}

// renewal prepares a renewal.
func (s *session) renewal(req backend.RenewRequest) renewal {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := renewal{req: req}
	if h := s.holds[key{req.Kind, req.Name, req.Owner}]; h != nil && h.count > 0 && !h.dying {
		x.h, x.req.Owner = h, h.attempt
		x.poll = s.pollLocked(h, req.Lease)
		x.out = x.voters
		return x
	}
	for _, st := range s.stores {
		x.out.add(st)
	}
	return x
}

// A batch is a set of renewals under way.
type batch struct {
	s        *session
	answer   func(int, backend.RenewResult, error)
	mu       sync.Mutex
	renewals []renewal
	open     int           // the number of unanswered renewals
	answered chan struct{} // closed when all renewals are answered
}

// ask asks all stores and returns when all renewals are answered.
func (b *batch) ask(ctx context.Context) {
	for i := range b.renewals {
		b.settle(i, false) // answer the renewals that already have too few votes
	}
	if b.open == 0 {
		return
	}
	b.answered = make(chan struct{})
	r := newRound(b.s, b.s.ctx, ctx, func(ctx context.Context, st *store) (struct{}, error) {
		return struct{}{}, b.at(ctx, st)
	})
	defer r.leave()
	// Choose all stores before asking any of them. The first answers might already decide the
	// result, but the leases in the other stores must also be renewed.
	r.ask(slices.DeleteFunc(slices.Clone(b.s.stores), func(st *store) bool {
		return !b.asks(st)
	})...)
	for over := false; !over && r.waiting > 0; {
		select {
		case rep := <-r.replies:
			r.out.remove(rep.from)
			r.waiting--
		case <-b.answered:
			over = true
		case <-ctx.Done():
			over = true
		}
	}
	for i := range b.renewals {
		b.settle(i, true)
	}
	<-b.answered // another goroutine might still be calling answer
}

// asks reports whether the batch still needs a store's answer to any of its renewals.
func (b *batch) asks(st *store) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.renewals {
		if x := &b.renewals[i]; !x.done && x.out.has(st) {
			return true
		}
	}
	return false
}

// at sends a store its renewals.
func (b *batch) at(ctx context.Context, st *store) (failed error) {
	var reqs []backend.RenewRequest
	var indices []int
	b.mu.Lock()
	for i := range b.renewals {
		if x := &b.renewals[i]; x.out.has(st) {
			reqs, indices = append(reqs, x.req), append(indices, i)
		}
	}
	b.mu.Unlock()
	var mu sync.Mutex
	got := func(j int, res backend.RenewResult, err error) {
		if err != nil && backend.KindOf(err) != backend.Refused {
			mu.Lock()
			failed = err
			mu.Unlock()
		}
		b.got(indices[j], st, res, err)
	}
	if st.batch != nil {
		st.batch.RenewBatch(ctx, reqs, got)
		return failed
	}
	var all sync.WaitGroup
	for j, req := range reqs {
		all.Go(func() {
			res, err := st.session.Renew(ctx, req)
			got(j, res, err)
		})
	}
	all.Wait()
	return failed
}

// got counts a store's answer to one renewal. The answer might come after the batch has ended.
func (b *batch) got(i int, st *store, res backend.RenewResult, err error) {
	b.mu.Lock()
	x := &b.renewals[i]
	x.out.remove(st)
	switch {
	case err != nil:
		x.fails = append(x.fails, failure{st, err})
		if x.h != nil && backend.KindOf(err) == backend.Unknown {
			b.s.doubt(x.h, st, x.serial, x.req.Lease)
		}
	case x.h == nil:
		x.no++
	default:
		has, stays := b.s.renewed(x.h, st, x.serial, res.Held, x.req.Lease)
		if has && !stays {
			x.fails = append(x.fails, failure{st, errShortened})
		}
		x.count(st, has, stays)
	}
	h, p := x.h, x.poll
	b.mu.Unlock()
	b.settle(i, false)
	if h != nil && p.held() {
		b.s.repair(h, p)
	}
}

// settle answers a renewal once the stores have decided it, or have all answered. If the parameter
// now is true, settle doesn't wait for more votes.
func (b *batch) settle(i int, now bool) {
	s := b.s
	b.mu.Lock()
	x := &b.renewals[i]
	held, gone := false, x.no >= s.need
	if x.h != nil {
		held, gone = x.held(), x.gone()
	}
	if x.done || !held && !gone && x.out != 0 && !now {
		b.mu.Unlock()
		return
	}
	x.done = true
	var err error
	if !held && !gone {
		err = x.failure(s)
	}
	for _, st := range s.stores {
		if x.h != nil && x.out.has(st) {
			s.doubt(x.h, st, x.serial, x.req.Lease)
		}
	}
	b.mu.Unlock()
	if gone && x.h != nil {
		s.lose(x.h, x.serial)
	}
	b.answer(i, backend.RenewResult{Held: held}, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open--; b.open == 0 && b.answered != nil {
		close(b.answered)
	}
}

// failure returns the error of a renewal that the stores didn't decide.
func (x *renewal) failure(s *session) error {
	fails := slices.Clone(x.fails)
	for _, st := range s.stores {
		if x.out.has(st) {
			fails = append(fails, failure{st, errUnanswered})
		}
	}
	return failed(fails, len(s.stores), s.need, x.yes > 0)
}

package quorumbackend

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// session implements [backend.Session].
type session struct {
	limits backend.Limits
	stores []*store
	orders [][]*store // orders[i] is the order of all stores if store i is asked first
	need   int        // the number of stores that make a majority
	prompt bool       // no store's steps ever wait
	deaf   bool       // not all stores can send messages about releases
	began  time.Time
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu       sync.Mutex
	holds    map[key]*hold
	sweepAt  int
	attempts uint32
	contests map[string]*contest
	subs     map[*subscription]struct{}
	debts    debts
	flying   int           // the number of running goroutines
	landed   chan struct{} // closed when the last goroutine ends; nil if nothing waits for that
	closed   bool
}

// Capabilities implements [backend.Capable].
func (s *session) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Notifier: s, BatchRenewer: s,
		Steps: backend.StepsReturn, Settle: s.settle, WhyNot: whyNot,
	}
}

// background runs f in a goroutine that settle waits for.
func (s *session) background(f func()) {
	s.mu.Lock()
	s.flying++
	s.mu.Unlock()
	go func() {
		defer s.land()
		f()
	}()
}

// land records the end of a goroutine that settle waits for.
func (s *session) land() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying--
	if s.flying == 0 && s.landed != nil {
		close(s.landed)
		s.landed = nil
	}
}

// settle waits for the background work that steps have started.
func (s *session) settle() {
	var all sync.WaitGroup
	for _, st := range s.stores {
		if st.settle != nil {
			all.Go(st.settle)
		}
	}
	s.mu.Lock()
	landed := s.landed
	if s.flying > 0 && landed == nil {
		landed = make(chan struct{})
		s.landed = landed
	}
	s.mu.Unlock()
	if landed != nil {
		<-landed
	}
	all.Wait()
}

// Close implements [backend.Session].
func (s *session) Close() error {
	s.mu.Lock()
	s.closed = true
	subs := make([]backend.Subscription, 0, len(s.subs))
	for x := range s.subs {
		if sub := x.closeLocked(); sub != nil {
			subs = append(subs, sub)
		}
	}
	s.mu.Unlock()
	s.cancel()
	for _, sub := range subs {
		sub.Close()
	}
	errs := make([]error, len(s.stores))
	for i, st := range s.stores {
		errs[i] = st.session.Close()
	}
	return errors.Join(errs...)
}

// begin returns an error if the session doesn't support the kind of lock, or ctx has ended.
func (s *session) begin(ctx context.Context, k backend.Kind) error {
	if err := s.check(k); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return &backend.Error{Kind: backend.Retry, Err: err}
	}
	return nil
}

// Renew implements [backend.Session].
func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	if err := s.begin(ctx, req.Kind); err != nil {
		return backend.RenewResult{}, err
	}
	s.mu.Lock()
	h := s.holds[key{req.Kind, req.Name, req.Owner}]
	known := h != nil && h.count > 0 && !h.dying
	s.mu.Unlock()
	if !known {
		return backend.RenewResult{}, s.touch(ctx, func(ctx context.Context, st *store) error {
			_, err := st.session.Renew(ctx, req)
			return err
		})
	}
	held, err := s.renew(ctx, h, req.Lease)
	return backend.RenewResult{Held: held}, err
}

// errShortened is the error of a store that renewed a hold but might still shorten it, because an
// earlier request with a shorter lease is unanswered.
var errShortened = &backend.Error{
	Kind: backend.Unknown,
	Err:  errors.New("held, but an earlier request with a shorter lease may yet arrive"),
}

// renew renews a hold in a majority of the stores. The hold ends when so many stores lack it that
// the remaining ones can't be a majority.
func (s *session) renew(ctx context.Context, h *hold, lease time.Duration) (held bool, err error) {
	s.mu.Lock()
	if h.count == 0 {
		s.mu.Unlock()
		return false, nil // it has been released or lost
	}
	p := s.pollLocked(h, lease)
	req := backend.RenewRequest{Kind: h.kind, Name: h.name, Owner: h.attempt, Lease: lease}
	s.mu.Unlock()
	if p.gone() {
		s.lose(h, p.serial)
		return false, nil
	}
	r := newRound(s, s.ctx, ctx, func(ctx context.Context, st *store) (backend.RenewResult, error) {
		return st.session.Renew(ctx, req)
	})
	defer r.leave()
	for _, st := range s.stores {
		if p.voters.has(st) {
			r.ask(st)
		}
	}
	for r.waiting > 0 {
		deadline := r.last()
		if p.yes >= s.need || p.gone() {
			deadline = r.deadline()
		}
		rep, ok := r.next(deadline)
		if !ok {
			break
		}
		if rep.err != nil {
			if backend.KindOf(rep.err) == backend.Unknown {
				s.doubt(h, rep.from, p.serial, lease)
			}
			continue
		}
		has, stays := s.renewed(h, rep.from, p.serial, rep.res.Held, lease)
		if has && !stays {
			r.failures = append(r.failures, failure{rep.from, errShortened})
		}
		p.count(rep.from, has, stays)
	}
	for _, st := range s.stores {
		if r.out.has(st) {
			s.doubt(h, st, p.serial, lease)
		}
	}
	switch {
	case p.gone():
		s.lose(h, p.serial)
		return false, nil
	case p.held():
		if r.waiting > 0 && !r.over() {
			r.slow()
		}
		s.repair(h, p)
		return true, nil
	}
	r.partly = p.yes > 0
	return false, r.failure()
}

// renewed records a store's answer to a renewal. It ignores the answer if the hold's votes no
// longer have the given serial. has reports whether the store has the hold. stays reports whether
// the hold will last for the whole lease.
func (s *session) renewed(
	h *hold, st *store, serial uint64, held bool, lease time.Duration,
) (has, stays bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.serial != serial || h.dying {
		return false, false
	}
	return h.renewedLocked(st, held, lease)
}

func (s *session) doubt(h *hold, st *store, serial uint64, lease time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.serial == serial {
		h.doubtLocked(st, lease)
	}
}

// lose ends a hold that no longer has a majority. Stores that might still have the hold are asked
// to release it.
func (s *session) lose(h *hold, serial uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.serial != serial || h.votes == nil || h.dying {
		return
	}
	s.dropLocked(h)
	if h.users == 0 && s.holds[h.key] == h {
		delete(s.holds, h.key)
	}
}

// dropLocked forgets a hold. Stores that might still have the hold are asked to release it.
func (s *session) dropLocked(h *hold) {
	s.oweAllLocked(h)
	h.clear()
}

// oweAllLocked records a debt for each store that has a hold, has a note that the Write is waiting,
// or might still grant the hold.
func (s *session) oweAllLocked(h *hold) {
	for i, v := range h.votes {
		if v.late > 0 || v.state == granted || v.state == denied && h.noted {
			s.oweLocked(h, s.stores[i], v.late)
		}
	}
}

func later(x, y time.Time) time.Time {
	if x.After(y) {
		return x
	}
	return y
}

// touch sends a request to all stores on behalf of an owner that holds nothing. It returns when a
// majority has answered. Its only purpose is to find errors, for example that the stores use the
// name for something that isn't a lock.
func (s *session) touch(ctx context.Context, do func(context.Context, *store) error) error {
	r := newRound(s, context.Background(), ctx, func(
		ctx context.Context, st *store,
	) (struct{}, error) {
		return struct{}{}, do(ctx, st)
	})
	defer r.leave()
	r.ask(s.stores...)
	for answers := 0; answers < s.need; {
		rep, ok := r.next(time.Time{})
		if !ok {
			return r.failure()
		}
		if rep.err == nil {
			answers++
		}
	}
	return nil
}

// Release implements [backend.Session].
func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	var none backend.ReleaseResult
	if err := s.begin(ctx, req.Kind); err != nil {
		return none, err
	}
	h, err := s.enter(ctx, key{req.Kind, req.Name, req.Owner})
	if err != nil {
		return none, err
	}
	defer s.leave(h)
	s.mu.Lock()
	count, asked, closed := h.count, h.votes != nil, s.closed
	if count > 1 && closed {
		h.count-- // after Close no store renews its holds
	}
	s.mu.Unlock()
	switch {
	case count > 1 && closed:
		return backend.ReleaseResult{Outcome: backend.Left}, nil
	case count > 1:
		held, err := s.renew(ctx, h, req.Lease)
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.count > 1 && (held || err != nil && backend.KindOf(err) == backend.Unknown) {
			h.count-- // the session keeps the count, whatever the stores did
		}
		if err != nil || !held {
			return none, err
		}
		return backend.ReleaseResult{Outcome: backend.Left}, nil
	case count > 0:
		return s.free(ctx, h, req)
	case asked: // an earlier attempt has left a note
		s.giveBack(ctx, h, req, false)
	}
	if err := s.pay(ctx, h.key); err != nil {
		return none, err
	}
	return none, s.touch(ctx, func(ctx context.Context, st *store) error {
		_, err := st.session.Release(ctx, req)
		return err
	})
}

// free performs the last release of a hold, which frees the lock.
func (s *session) free(
	ctx context.Context, h *hold, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	r, last, err := s.giveBack(ctx, h, req, false)
	if err != nil {
		return backend.ReleaseResult{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r >= s.need {
		last.Outcome = backend.Freed
	} else {
		last.Outcome = backend.NotHeld
	}
	return last, nil
}

// giveBack releases a hold in every store that was asked for it. If others want the lock, the store
// that granted the hold first gets the release last, after the other stores have answered, since
// waiters listen to that store. Otherwise all stores get it at once. In that case, a waiter that
// the session isn't aware of might be woken too early, but the stores that refuse it wake it again.
//
// giveBack returns how many stores had the hold, and the answer of the store that granted it first.
// If it can't tell how many, it returns an error, and can be called again. If waits is set, the
// owner keeps waiting for its Write, so the notes stay in the stores. Where the lock is of another
// kind by now, they stay, too. The next attempt then uses the same name, h.attempt, unless a
// release with that name might still be under way.
func (s *session) giveBack(
	ctx context.Context, h *hold, req backend.ReleaseRequest, waits bool,
) (had int, last backend.ReleaseResult, err error) {
	s.mu.Lock()
	held, first := h.count > 0, h.first
	h.dying = true
	req.Owner, req.Lease = h.attempt, s.stored(req.Lease, h)
	var asked []*store
	for i, v := range h.votes {
		switch {
		case v.state == granted, v.state == doubtful, v.state == struck, v.late > 0,
			v.state == denied && h.noted && !waits:
			asked = append(asked, s.stores[i])
		}
	}
	had = len(s.inLocked(h, freed))
	noted := false               // whether a note stays, since it can't be taken back yet
	burnt, conflicts := false, 0 // burnt means that a release might still be under way
	inOrder := h.kind != backend.Exclusive || s.deaf || s.isContestedLocked(h.name)
	s.mu.Unlock()

	r := newRound(s, context.Background(), ctx, func(
		ctx context.Context, st *store,
	) (backend.ReleaseResult, error) {
		req := req
		req.AskWaiting = req.AskWaiting && st == first
		return st.session.Release(ctx, req)
	})
	defer r.leave()
	for _, st := range s.in(h, granted) {
		r.trusted.add(st) // it has answered for this hold
	}
	others := slices.DeleteFunc(slices.Clone(asked), func(st *store) bool { return st == first })
	count := func(rep reply[backend.ReleaseResult]) {
		s.mu.Lock()
		defer s.mu.Unlock()
		v := &h.votes[rep.from.number]
		switch {
		case v.state == denied && errors.Is(rep.err, backend.ErrConflict):
			conflicts++
			noted = true
		case errors.Is(rep.err, backend.ErrConflict),
			rep.err == nil && rep.res.Outcome == backend.NotHeld:
			if rep.err != nil {
				conflicts++ // the hold has ended there
			}
			if v.late > 0 {
				s.oweLocked(h, rep.from, v.late)
				burnt = true
			}
			v.state, v.late = unasked, 0
		case rep.err != nil:
		default:
			if h.foundLocked(v); v.late > 0 {
				s.oweLocked(h, rep.from, v.late)
				burnt = true
			}
			v.state, v.late = freed, 0
			had++
		}
		if rep.from == first {
			if last = rep.res; last.Waiting > 0 {
				s.contestLocked(h.name)
			}
		}
	}
	take := func(deadline time.Time) bool {
		rep, ok := r.next(deadline)
		if ok {
			count(rep)
		}
		return ok
	}
	// Stores get more time than for other steps, since the next caller can't get the lock before
	// every store has released it. The wait is limited, so that time remains for the first store.
	patient := func() time.Time {
		return r.deadline().Add(min(releasePatience*r.longestOut(), longestMore))
	}
	r.ask(others...)
	for inOrder && take(patient()) {
	}
	if slices.Contains(asked, first) {
		r.ask(first)
	}
	for ok := true; ok; {
		deadline := r.last()
		if had >= s.need || had+len(s.in(h, granted, doubtful)) < s.need || !held {
			deadline = patient()
		}
		ok = take(deadline)
	}
	if r.waiting > 0 && !r.over() {
		r.slow()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.inLocked(h, granted, doubtful)
	if held && had < s.need && had+len(left) >= s.need {
		r.partly = had > 0
		return had, last, r.failure()
	}
	if (waits || noted && !held) && !burnt && len(left) == 0 {
		h.dying, h.first = false, nil
		for i := range h.votes {
			if h.votes[i].state == freed {
				h.votes[i] = vote{}
			}
		}
		return had, last, nil
	}
	s.oweAllLocked(h)
	silent := s.inLocked(h, unasked)
	if had >= s.need && !s.closed {
		s.mu.Unlock()
		s.ring(ctx, h.key, h.lease, silent)
		s.mu.Lock()
	}
	h.clear()
	if conflicts > len(s.stores)-s.need {
		return had, last, r.failure()
	}
	return had, last, nil
}

// mostTolls limits how many times a bell is rung at a store. A bell is an acquisition that is made
// only to be released, since the release wakes waiters. If the store loses the lock before the
// release, the bell is rung again.
const mostTolls = 10

// ring wakes the waiters of stores that had nothing to release, because they lost the hold, or were
// down when it was acquired. For that, it acquires and releases the lock in each of these stores.
// If another owner holds the lock in one, that owner's release wakes the waiters. The requests of
// ring keep other callers out, so it waits for them, but only for a limited time.
func (s *session) ring(ctx context.Context, k key, lease time.Duration, stores []*store) {
	var all sync.WaitGroup
	for _, st := range stores {
		if !st.isDown() {
			all.Go(func() { s.ringAt(ctx, st, k, lease) })
		}
	}
	all.Wait()
}

// bellLease returns the lease of a bell that is rung after a ForceRelease.
func (s *session) bellLease() time.Duration {
	step := s.limits.LeaseStep
	return (max(s.limits.MinLease, time.Second) + step - 1) / step * step
}

func (s *session) ringAt(ctx context.Context, at *store, k key, lease time.Duration) {
	s.mu.Lock()
	s.attempts++
	bell := &hold{
		key: k, attempt: k.owner + "." + strconv.FormatUint(uint64(s.attempts), 10), lease: lease,
		ends: time.Now().Add(lease),
	}
	s.mu.Unlock()
	rung := make(chan struct{})
	s.background(func() {
		defer close(rung)
		ctx, cancel := context.WithTimeout(s.ctx, payPatience)
		defer cancel()
		for more := mostTolls; more > 0 && s.toll(ctx, at, bell); more-- {
		}
	})
	timer := time.NewTimer(releasePatience * s.patience(at))
	defer timer.Stop()
	select {
	case <-rung:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// toll acquires a bell and releases it, which wakes the waiters. It returns true if the store lost
// the bell in between, so that no waiter was woken.
func (s *session) toll(ctx context.Context, at *store, bell *hold) (again bool) {
	res, err := at.session.Acquire(ctx, backend.AcquireRequest{
		Kind: bell.kind, Name: bell.name, Owner: bell.attempt, Lease: bell.lease,
	})
	late := err != nil && backend.KindOf(err) == backend.Unknown
	if res.Acquired && err == nil {
		var released backend.ReleaseResult
		// The release continues after Close.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), payPatience)
		defer cancel()
		released, err = at.session.Release(ctx, backend.ReleaseRequest{
			Kind: bell.kind, Name: bell.name, Owner: bell.attempt, Lease: bell.lease,
		})
		late, again = err != nil, err == nil && released.Outcome == backend.NotHeld
	}
	if late {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.oweLocked(bell, at, 1)
	}
	return again
}

// stored returns the lease in a release request, or the hold's lease if the request has none.
func (s *session) stored(lease time.Duration, h *hold) time.Duration {
	if lease > 0 {
		return lease
	}
	return h.lease
}

// ForceRelease implements [backend.Session].
func (s *session) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (res backend.ForceReleaseResult, err error) {
	if err := s.begin(ctx, req.Kind); err != nil {
		return res, err
	}
	r := newRound(s, s.ctx, ctx, func(
		ctx context.Context, st *store,
	) (backend.ForceReleaseResult, error) {
		return st.session.ForceRelease(ctx, req)
	})
	defer r.leave()
	answers, released := 0, 0
	var silent []*store
	take := func(deadline time.Time) bool {
		rep, ok := r.next(deadline)
		if ok && rep.err == nil {
			answers++
			if rep.res.Released {
				released++
			} else {
				silent = append(silent, rep.from)
			}
		}
		return ok
	}
	order := s.order(req.Name)
	r.ask(order[1:]...)
	for take(r.deadline()) {
	}
	r.ask(order[0])
	for ok := true; ok; {
		var deadline time.Time
		if answers >= s.need {
			deadline = r.deadline()
		}
		ok = take(deadline)
	}
	if answers < s.need {
		r.partly = released > 0
		return res, r.failure()
	}
	// If only a minority had the hold, its holder was already releasing it, so ForceRelease didn't
	// free the lock.
	res.Released = released >= s.need
	if res.Released {
		s.ring(ctx, key{req.Kind, req.Name, "forced"}, s.bellLease(), silent)
	}
	return res, nil
}

// Look implements [backend.Session].
func (s *session) Look(
	ctx context.Context, req backend.LookRequest,
) (res backend.LookResult, err error) {
	if err := s.begin(ctx, req.Kind); err != nil {
		return res, err
	}
	s.mu.Lock()
	h, count := s.holds[key{req.Kind, req.Name, req.Owner}], 0
	if req.Owner = ""; h != nil && h.count > 0 {
		req.Owner, count = h.attempt, h.count
	}
	s.mu.Unlock()
	r := newRound(s, s.ctx, ctx, func(ctx context.Context, st *store) (backend.LookResult, error) {
		return st.session.Look(ctx, req)
	})
	defer r.leave()
	r.ask(s.order(req.Name)...)
	free, has := 0, 0
	var ends []time.Duration
	for {
		var deadline time.Time
		if free+len(ends) >= s.need && (count == 0 || has >= s.need || has+r.waiting < s.need) {
			deadline = r.deadline()
		}
		rep, ok := r.next(deadline)
		if !ok {
			break
		}
		switch {
		case rep.err != nil:
		case rep.res.Held:
			ends = append(ends, rep.res.Remaining)
			if rep.res.Count > 0 {
				has++
			}
		default:
			free++
		}
	}
	unheard := len(s.stores) - free - len(ends)
	switch {
	case unheard > len(s.stores)-s.need, count > 0 && has < s.need && has+unheard >= s.need:
		return res, r.failure()
	case free >= s.need: // a majority would now grant an attempt, so the lock is free
		return res, nil
	}
	if has >= s.need {
		res.Count = count
	}
	// The lock is held for as long as a majority has the hold.
	slices.SortFunc(ends, func(x, y time.Duration) int { return -compareEnds(x, y) })
	res.Held, res.Remaining = true, ends[min(s.need, len(ends))-1]
	return res, nil
}

// compareEnds compares how long holds last. A negative duration means that the hold never ends.
func compareEnds(x, y time.Duration) int {
	if x < 0 {
		x = math.MaxInt64
	}
	if y < 0 {
		y = math.MaxInt64
	}
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

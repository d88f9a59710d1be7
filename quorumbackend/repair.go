package quorumbackend

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A poll counts the stores' answers to one renewal of a hold.
type poll struct {
	serial  uint64
	round   uint32 // the number of the renewal
	need    int
	stores  int
	voters  set // the stores that are asked
	refuted set // voters that once lacked the hold, and count as no even if they say yes
	yes, no int
	sure    int // the number of voters that said yes and aren't in refuted
}

// pollLocked begins a renewal. The voters are the stores that have the hold or might have it. All
// other stores count as no.
func (s *session) pollLocked(h *hold, lease time.Duration) poll {
	h.ends, h.lease = later(h.ends, time.Now().Add(lease)), lease
	h.rounds++
	p := poll{serial: h.serial, round: h.rounds, need: s.need, stores: len(s.stores)}
	for i, v := range h.votes {
		switch {
		case v.state != granted && v.state != doubtful:
			p.no++
			continue
		case v.refuted:
			p.no++
			p.refuted.add(s.stores[i])
		}
		p.voters.add(s.stores[i])
	}
	return p
}

// count adds a store's answer to the poll. The answer says whether the store has the hold, and
// whether the hold stays there for the whole lease.
func (p *poll) count(st *store, has, stays bool) {
	known := p.refuted.has(st)
	switch {
	case !has && !known:
		p.no++
	case has && stays:
		p.yes++
		if !known {
			p.sure++
		}
	}
}

// gone reports whether too many stores count as no for the others to form a majority. A store
// counts as no if it lacks the hold, or might have lacked it for a moment.
func (p *poll) gone() bool { return p.no > p.stores-p.need }

// held reports whether a majority has confirmed the hold and the hold isn't gone.
func (p *poll) held() bool { return p.yes >= p.need && !p.gone() }

// mostMenders is the maximum number of goroutines that repair holds at one store concurrently.
const mostMenders = 16

// A repair asks a store to grant a hold that it lacks.
type repair struct {
	h      *hold
	serial uint64
}

// repair asks the stores that lack a hold to grant it. It is called once a majority has confirmed
// the hold. A store lacks the hold if it was down when the hold was acquired, if another owner held
// the lock there, or if it lost the hold.
//
// After the repair, the store's answers count towards a majority. But while it lacked the hold,
// another owner might have held the lock there and in a second store that had lost the hold. The
// next renewal would still find a majority, and the holder would never know. So the session
// remembers that a store lacked the hold, until a later renewal is confirmed by a majority of
// stores that have had the hold all the time.
func (s *session) repair(h *hold, p poll) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.serial != p.serial || h.votes == nil || h.dying || h.count == 0 || s.closed {
		return
	}
	if s.lenderLocked(h) != nil {
		return // a late repair could grant the owner's next Read, which has the same attempt name
	}
	for i := range h.votes {
		v, st := &h.votes[i], s.stores[i]
		switch v.state {
		case granted:
			if v.refuted && v.since < p.round && p.sure >= p.need {
				v.refuted = false
			}
		case unasked, denied, struck:
			if v.asking || h.borrowed && h.barred.has(st) {
				continue
			}
			v.asking = true
			st.repairs = append(st.repairs, repair{h, h.serial})
			if st.menders < mostMenders {
				st.menders++
				s.flying++
				go s.mend(st)
			}
		}
	}
}

// mend carries out the repairs that are due at a store, one after another.
func (s *session) mend(st *store) {
	defer s.land()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { st.menders-- }()
	for len(st.repairs) > 0 {
		x := st.repairs[0]
		st.repairs = st.repairs[1:]
		if x.h.serial != x.serial || x.h.votes == nil {
			continue
		}
		v := &x.h.votes[st.number]
		if x.h.dying || s.closed {
			v.asking = false
			continue
		}
		if !s.mendLocked(st, x, v) { // later renewals repair the rest
			for _, left := range st.repairs {
				if left.h.serial == left.serial && left.h.votes != nil {
					left.h.votes[st.number].asking = false
				}
			}
			st.repairs = nil
		}
	}
}

// confirm asks the other stores whether they have a hold, so that the session can soon forget that
// the repaired store lacked it. confirm uses Look instead of a renewal, since a renewal would
// shorten the hold if it ran concurrently with another one whose lease is longer.
func (s *session) confirm(h *hold, serial uint64) {
	s.mu.Lock()
	if h.serial != serial || h.votes == nil || h.dying {
		s.mu.Unlock()
		return
	}
	p := s.pollLocked(h, h.lease)
	req := backend.LookRequest{Kind: h.kind, Name: h.name, Owner: h.attempt}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, payPatience)
	defer cancel()
	r := newRound(s, s.ctx, ctx, func(ctx context.Context, st *store) (backend.LookResult, error) {
		return st.session.Look(ctx, req)
	})
	defer r.leave()
	for _, st := range s.stores {
		if p.voters.has(st) && !p.refuted.has(st) {
			r.ask(st)
		}
	}
	for rep, ok := r.next(r.deadline()); ok; rep, ok = r.next(r.deadline()) {
		if rep.err == nil && rep.res.Count > 0 {
			p.count(rep.from, true, true)
		}
	}
	s.repair(h, p)
}

// mendLocked carries out one repair. It unlocks the mutex during the request. It returns false if
// the store doesn't answer.
func (s *session) mendLocked(st *store, x repair, v *vote) bool {
	h := x.h
	req := backend.AcquireRequest{Kind: h.kind, Name: h.name, Owner: h.attempt, Lease: h.lease}
	h.ends = later(h.ends, time.Now().Add(req.Lease))
	v.late++
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, payPatience)
	began := time.Now()
	res, err := st.session.Acquire(ctx, req)
	cancel()
	answered := err == nil || backend.KindOf(err) == backend.Refused
	switch {
	case answered:
		st.answered(time.Since(began))
	case s.ctx.Err() == nil:
		s.failed(st)
	}
	s.mu.Lock()
	if h.serial != x.serial || h.votes == nil {
		return answered // the hold has ended; if the store granted it late, a debt releases it
	}
	v.asking = false
	switch {
	case h.dying: // the release of the hold also takes care of a late grant
	case err != nil && backend.KindOf(err) == backend.Unknown:
		v.state, v.refuted = doubtful, true
		h.doubtLocked(st, req.Lease)
	case err == nil && res.Acquired:
		h.foundLocked(v)
		v.refuted = true
		s.mu.Unlock()
		s.confirm(h, x.serial)
		s.mu.Lock()
	default:
		v.late--
	}
	return answered
}

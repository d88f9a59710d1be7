package quorumbackend

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A poll counts what the stores say to one renewal of a hold.
type poll struct {
	serial  uint64
	round   uint32 // which renewal of the hold it is
	need    int
	stores  int
	voters  set // the stores that are asked
	refuted set // those of them that have lacked the hold: they count as no, whatever they say now
	yes, no int
	sure    int // yeas of the others
}

// pollLocked begins a renewal.
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

// count counts an answer: whether the store has the hold, and stands by the lease.
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

// gone says whether a majority doesn't have the hold, or may not have had it for a moment.
func (p *poll) gone() bool { return p.no > p.stores-p.need }

// held says whether a majority has it.
func (p *poll) held() bool { return p.yes >= p.need && !p.gone() }

// mostMenders is how many requests of a session at a time ask a store for what it lacks.
const mostMenders = 16

// A repair is a hold that a store is to be asked for again.
type repair struct {
	h      *hold
	serial uint64
}

// repair has the stores that lack a hold asked for it again, now that a majority has said that it
// is held: those that were down when it was acquired, that another had then, and that have lost it.
//
// One that has it again counts from then on, but that it has lacked it isn't forgotten at once. In
// between somebody else may have had the lock there, and in a store that has lost the hold since;
// the next renewal would find a majority all the same, and the holder wouldn't be told. So it
// is forgotten when a renewal that was sent later is answered by a majority of others: they
// have had the hold all the time.
func (s *session) repair(h *hold, p poll) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.serial != p.serial || h.votes == nil || h.dying || h.count == 0 || s.closed {
		return
	}
	if s.lenderLocked(h) != nil {
		return // a late request for it can't be told from one for the next Read under that Write
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

// mend asks a store for what it lacks, one hold after the other.
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
		if !s.mendLocked(st, x, v) { // the next renewals ask again for what is left
			for _, left := range st.repairs {
				if left.h.serial == left.serial && left.h.votes != nil {
					left.h.votes[st.number].asking = false
				}
			}
			st.repairs = nil
		}
	}
}

// confirm asks the other stores whether they have a hold, so that it is forgotten soon that one has
// lacked it. It looks, since a renewal might overtake one with a longer lease.
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

// mendLocked asks for one, without the mutex. It returns false if the store doesn't answer.
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
		return answered // what came late is given back
	}
	v.asking = false
	switch {
	case h.dying: // it is given back as what comes late is
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

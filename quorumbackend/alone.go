package quorumbackend

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// longestSecondLook bounds how long an attempt waits until it tries again. What is asked without a
// store too soon costs round trips, and a split vote at worst; a store's patience may be minutes.
const longestSecondLook = 100 * time.Millisecond

// attempt tries to get a lock that the owner doesn't have.
//
// A store that is asked first, and says no, is believed if the others have been taken, too. If they
// are free then somebody has just got its vote, or has just given back theirs; or it has what
// nobody uses: it hung when that was released, its clock stands still, or an attempt died. The
// first two are over in a moment. So if all is as before then, the others are asked without it.
func (s *session) attempt(ctx context.Context, h *hold, req backend.AcquireRequest) (backend.AcquireResult, error) {
	for asked := 1; ; asked++ {
		res, alone, err := s.try(ctx, h, req)
		if alone == nil || asked > 2 || s.isSure(req.Name) {
			return res, err
		}
		o := s.others(ctx, req, alone)
		if len(o.free) < s.need {
			return s.refusedBy(alone, req, res, o), err
		}
		if asked == 2 {
			s.direct(req.Name, o.free[0], max(res.Remaining, alone.patience()))
			continue
		}
		timer := time.NewTimer(min(o.patience, longestSecondLook))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return res, err
		}
	}
}

// isSure says whether a store that refuses a name alone is believed without a look at the others.
func (s *session) isSure(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.detours[name]
	return d != nil && time.Now().Before(d.sure)
}

// believe has a store that refuses a name alone be believed for a while.
func (s *session) believe(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.detourLocked(name)
	d.sure = time.Now().Add(sureFor)
	d.until = later(d.until, d.sure)
}

// What the others have when one store refuses an attempt.
type others struct {
	free     []*store // in the order in which they are asked
	held     []*store
	ends     []time.Duration // of those that have it held
	patience time.Duration   // with them
}

// others looks what the others have. Read and Write are looked at one by one, and either is held.
// If the store that refuses a Read has no Write then it is a note that keeps readers out, and that
// is left in one store only: it goes for the others, too.
func (s *session) others(ctx context.Context, req backend.AcquireRequest, alone *store) (o others) {
	r := newRound(s, s.ctx, ctx, func(ctx context.Context, st *store) (backend.LookResult, error) {
		kind := req.Kind
		if kind == backend.Read || kind == backend.Write {
			res, err := st.session.Look(ctx, backend.LookRequest{Kind: backend.Write, Name: req.Name})
			if err != nil || res.Held || st == alone {
				return res, err
			}
			kind = backend.Read
		}
		return st.session.Look(ctx, backend.LookRequest{Kind: kind, Name: req.Name})
	})
	defer r.leave()
	order := s.order(req.Name)
	for _, st := range order {
		if st != alone || req.Kind == backend.Read {
			r.ask(st)
		}
	}
	var free set
	noted := req.Kind == backend.Read
	for {
		rep, ok := r.next(r.sent.Add(max(r.longest, leastPatience)))
		if !ok {
			break
		}
		switch {
		case rep.err != nil:
		case rep.from == alone:
			noted = !rep.res.Held
		case rep.res.Held:
			o.held, o.ends = append(o.held, rep.from), append(o.ends, rep.res.Remaining)
		default:
			free.add(rep.from)
		}
	}
	for _, st := range order {
		if free.has(st) && !noted {
			o.free = append(o.free, st)
		}
	}
	o.patience = max(r.longest, leastPatience)
	return o
}

// refusedBy says for how long an attempt need not be repeated that one store has refused, and
// others would have.
//
// If these have what ends at other times than what that one has, it is another's, and whoever has
// that releases elsewhere. For Read and Write times say nothing, since they are those of several.
func (s *session) refusedBy(alone *store, req backend.AcquireRequest, res backend.AcquireResult, o others) backend.AcquireResult {
	if req.Kind != backend.Exclusive {
		s.believe(req.Name)
		return res
	}
	apart := max(o.patience, s.limits.LeaseStep)
	var elsewhere []*store
	for i, end := range o.ends {
		if (end < 0) != (res.Remaining < 0) || (end-res.Remaining).Abs() > apart {
			elsewhere = append(elsewhere, o.held[i])
		}
	}
	switch {
	case len(elsewhere) == 0:
		s.believe(req.Name)
	case len(elsewhere) >= s.need:
		s.believe(req.Name)
		s.direct(req.Name, elsewhere[0], max(res.Remaining, o.patience))
		s.follow(req.Name, elsewhere[0])
	default: // somebody is about to get it, or to give it back: the next attempt looks where that is
		if pause := s.sitOut(req.Name); res.Remaining < 0 || pause < res.Remaining {
			res.Remaining = pause
		}
	}
	return res
}

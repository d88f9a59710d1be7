package quorumbackend

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// longestSecondLook limits the pause before an attempt looks at the lock a second time. Without a
// limit, the pause would be as long as the session waits for the other stores, which might be
// minutes. But a much shorter pause would cost round trips and might split the votes between
// owners.
const longestSecondLook = 100 * time.Millisecond

// attempt tries to acquire a lock that the owner doesn't hold.
//
// If the store that is asked first refuses, the session looks at the other stores. It believes the
// refusal if the lock isn't free there either. If the lock is free there, there are two possible
// reasons. Another owner might just have obtained the first store's vote, or released the other
// stores' votes. That state lasts only a moment. Or the first store might have a leftover hold,
// because it hung during the release, its clock has stopped, or an owner died during an attempt. To
// find out, attempt looks again shortly after. If nothing has changed by then, it asks the other
// stores without the first.
func (s *session) attempt(
	ctx context.Context, h *hold, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	for asked := 1; ; asked++ {
		res, alone, err := s.try(ctx, h, req)
		if alone == nil || asked > 2 || s.isSure(req.Name) {
			return res, err
		}
		o := s.others(ctx, req, alone)
		// This is only for plain locks. A refused Write might have left notes, which the caller
		// removes later.
		if req.Kind == backend.Exclusive && len(o.conflicts) >= s.need {
			err := failed(o.conflicts, len(s.stores), s.need, false)
			return backend.AcquireResult{}, err
		}
		if len(o.free) < s.need {
			return s.refusedBy(alone, req, res, o), err
		}
		if asked == 2 {
			s.direct(req.Name, o.free[0], max(res.Remaining, s.patience(alone)))
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

// isSure reports whether the session believes a single store that refuses the lock with this name,
// without looking at the other stores.
func (s *session) isSure(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.contests[name]
	return c != nil && time.Now().Before(c.sure)
}

// believe makes the session believe, for a while, a single store that refuses the lock with this
// name.
func (s *session) believe(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contestLocked(name).sure = time.Now().Add(sureFor)
}

// others is the state of the lock in the other stores after one store has refused an attempt.
type others struct {
	free     []*store // stores where it is free, in the order in which they are asked
	held     []*store
	ends     []time.Duration // how long the holds in held last
	patience time.Duration   // how long to wait for these stores

	conflicts []failure // stores in which the name isn't a lock of this kind
}

// until returns the stores whose holds end at about the given time. The parameter apart is the
// maximum difference.
func (o *others) until(end, apart time.Duration) (stores []*store) {
	for i, x := range o.ends {
		if (x < 0) == (end < 0) && (x-end).Abs() <= apart {
			stores = append(stores, o.held[i])
		}
	}
	return stores
}

// others looks at the lock in the other stores. For a read-write lock, it looks for a Write and
// then for a Read, and counts the lock as held if either exists. For a Read, it also looks for a
// Write in the store that refused. If that store has none, it refused because of a note by which a
// waiting writer keeps readers out. Such a note is in only one store, but counts for all of them.
func (s *session) others(ctx context.Context, req backend.AcquireRequest, alone *store) (o others) {
	r := newRound(s, s.ctx, ctx, func(ctx context.Context, st *store) (backend.LookResult, error) {
		kind := req.Kind
		if kind == backend.Read || kind == backend.Write {
			res, err := st.session.Look(ctx, backend.LookRequest{
				Kind: backend.Write, Name: req.Name,
			})
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
		case errors.Is(rep.err, backend.ErrConflict):
			o.conflicts = append(o.conflicts, failure{rep.from, rep.err})
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

// refusedBy returns the result of an attempt that one store refused and that the other stores would
// also have refused. The result's Remaining is how long another attempt would be pointless.
//
// Holds that end at the same time belong to one owner. If a majority of the stores has such holds,
// not counting the first store, the session waits for the release at one of these stores. For a
// read-write lock, the times don't identify an owner, since there might be several holders.
func (s *session) refusedBy(
	alone *store, req backend.AcquireRequest, res backend.AcquireResult, o others,
) backend.AcquireResult {
	if req.Kind != backend.Exclusive {
		s.believe(req.Name)
		return res
	}
	apart := max(o.patience, s.limits.LeaseStep)
	with := o.until(res.Remaining, apart)
	var elsewhere []*store
	for _, end := range o.ends {
		if same := o.until(end, apart); len(same) > len(elsewhere) {
			elsewhere = same
		}
	}
	// The lock becomes free only when it is free in a majority of the stores.
	ends := slices.SortedFunc(slices.Values(append(o.ends, res.Remaining)), compareEnds)
	detour := max(res.Remaining, o.patience)
	res.Remaining = ends[min(s.need-len(o.free), len(ends))-1]
	switch {
	case len(with) == len(o.held) || len(with)+1 >= s.need:
		s.believe(req.Name)
	case len(elsewhere) >= s.need:
		s.believe(req.Name)
		s.direct(req.Name, elsewhere[0], detour)
		s.follow(req.Name, elsewhere[0])
	default:
		// Another owner is acquiring or releasing the lock. The next attempt sees the result.
		if pause := s.sitOut(req.Name); res.Remaining < 0 || pause < res.Remaining {
			res.Remaining = pause
		}
	}
	return res
}

package quorumbackend

import (
	"context"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Acquire implements [backend.Session].
func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	var none backend.AcquireResult
	if err := s.begin(ctx, req.Kind); err != nil {
		return none, err
	}
	h, err := s.enter(ctx, key{req.Kind, req.Name, req.Owner})
	if err != nil {
		return none, err
	}
	defer s.leave(h)
	s.mu.Lock()
	if h.dying {
		s.dropLocked(h)
	}
	count := h.count
	s.mu.Unlock()
	if count > 0 {
		held, err := s.renew(ctx, h, req.Lease)
		if err != nil {
			return none, err
		}
		if held {
			return s.count(h), nil
		}
	}
	return s.attempt(ctx, h, req)
}

// count adds a re-entry to the count of a hold.
func (s *session) count(h *hold) backend.AcquireResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.kind != backend.Read && h.count > 0 {
		h.count++
	}
	return backend.AcquireResult{Acquired: h.count > 0, Count: h.count}
}

// An attempt tries to acquire a lock from a majority of the stores.
type attempt struct {
	*round[backend.AcquireResult]
	h       *hold
	left    []*store // stores that haven't been asked yet
	first   *store   // the first store that granted the lock
	yes     set
	no      []reply[backend.AcquireResult]
	refused *store // the first store that refused the lock
	without int    // the number of stores that lack the Write that encloses this Read
}

// isRefused reports whether another owner holds the lock. For a Read within its owner's Write, one
// refusal isn't enough if another store has granted the Read. Otherwise the holder would be told
// that it lost the Write.
func (a *attempt) isRefused() bool {
	if a.h.borrowed && a.yes != 0 {
		return len(a.no) > 0 && len(a.no)+a.without > len(a.s.stores)-a.s.need
	}
	return a.refused != nil
}

// try makes one attempt. If one store refused the lock and no other store granted it, alone is the
// store that refused.
func (s *session) try(
	ctx context.Context, h *hold, req backend.AcquireRequest,
) (res backend.AcquireResult, alone *store, err error) {
	s.mu.Lock()
	s.nameLocked(h)
	req.Owner, req.Reentry = h.attempt, false
	h.lease, h.ends = req.Lease, later(h.ends, time.Now().Add(max(req.Lease, req.Place)))
	var with, barred set // with: the stores that have the Write enclosing this Read
	w := s.lenderLocked(h)
	if w != nil {
		with, barred = s.haveLocked(w), w.barred
		h.barred = barred
	}
	s.mu.Unlock()

	a := &attempt{h: h, left: s.order(req.Name)}
	if w != nil {
		a.left = slices.DeleteFunc(slices.Clone(a.left), func(st *store) bool {
			return !with.has(st) || barred.has(st)
		})
		a.without = len(s.stores) - with.size()
	}
	a.round = newRound(s, s.ctx, ctx, func(
		ctx context.Context, st *store,
	) (backend.AcquireResult, error) {
		return st.session.Acquire(ctx, req)
	})
	defer a.leave()
	a.askFirst()
	if a.yes != 0 {
		a.askOthers()
	}
	if s.note(a, req) {
		return backend.AcquireResult{Acquired: true, Count: 1}, nil, nil
	}
	if a.refused != nil && a.yes == 0 && w == nil {
		alone = a.refused
	}
	res, err = s.fail(ctx, a, req)
	return res, alone, err
}

// haveLocked returns the stores that have a hold. If they aren't a majority, it adds the stores
// that might have it. It adds no other stores, since their answers might concern another owner.
func (s *session) haveLocked(h *hold) (have set) {
	stores := s.inLocked(h, granted)
	if len(stores) < s.need {
		stores = s.inLocked(h, granted, doubtful)
	}
	for _, st := range stores {
		have.add(st)
	}
	return have
}

// askFirst asks one store after the other until one grants or refuses the lock. Since all owners
// begin with the same store, one of them gets all votes even if several compete.
func (a *attempt) askFirst() {
	for a.yes == 0 && a.refused == nil {
		var deadline time.Time
		if len(a.left) > 0 {
			st := a.left[0]
			a.ask(st)
			a.left = a.left[1:]
			// Even a store that was down gets time to answer, since it might be the only one left.
			deadline = a.sent.Add(max(a.longest, st.least))
		}
		if !a.take(deadline) && (a.over() || a.waiting == 0 && len(a.left) == 0) {
			return
		}
	}
}

// take counts the next answer. If none comes in time, it marks the stores that haven't answered as
// slow.
func (a *attempt) take(deadline time.Time) bool {
	rep, ok := a.next(deadline)
	switch {
	case !ok && !a.over():
		a.slow()
	case !ok || rep.err != nil:
	case rep.res.Acquired:
		if a.first == nil {
			a.first = rep.from
		}
		a.yes.add(rep.from)
	default:
		if a.refused == nil {
			a.refused = rep.from
		}
		a.no = append(a.no, rep)
	}
	return ok
}

// askOthers asks the other stores concurrently. It asks stores that are down only if the others
// can't form a majority.
func (a *attempt) askOthers() {
	up := len(a.left)
	for up > 0 && a.left[up-1].isDown() {
		up--
	}
	a.ask(a.left[:up]...)
	a.left = a.left[up:]
	for {
		yes := a.yes.size()
		for yes+a.waiting < a.s.need && len(a.left) > 0 {
			a.ask(a.left[0])
			a.left = a.left[1:]
		}
		decided := yes >= a.s.need || yes+a.waiting < a.s.need
		var deadline time.Time
		switch {
		case decided || len(a.left) > 0:
			deadline = a.deadline()
		case a.refused != nil:
			// Another owner holds a vote, and might be waiting for the same store as this attempt.
			// If both kept their votes, nobody would get the lock. So don't wait for long.
			deadline = a.sent.Add(max(a.longest, leastPatience))
		default:
			deadline = a.last()
		}
		if a.take(deadline) {
			continue
		}
		if a.waiting == 0 || a.over() || decided || len(a.left) == 0 {
			return
		}
		a.ask(a.left[0])
		a.left = a.left[1:]
	}
}

// note records the stores' answers and reports whether the lock is acquired.
func (s *session) note(a *attempt, req backend.AcquireRequest) bool {
	h := a.h
	s.mu.Lock()
	defer s.mu.Unlock()
	set := func(st *store, v verdict) {
		h.votes[st.number].state, h.votes[st.number].late = v, 0
		if v == doubtful {
			h.votes[st.number].late = 1
			h.doubtLocked(st, req.Lease)
		}
	}
	for _, st := range s.stores {
		switch {
		case a.yes.has(st):
			set(st, granted)
		case a.out.has(st):
			set(st, doubtful)
		}
	}
	for _, rep := range a.no {
		set(rep.from, denied)
	}
	for _, f := range a.failures {
		if backend.KindOf(f.err) == backend.Unknown {
			set(f.at, doubtful)
		}
	}
	h.ends = later(h.ends, time.Now().Add(req.Lease)) // silent stores might grant it only now
	if a.yes.size() < s.need {
		return false
	}
	h.count, h.first = 1, a.first
	s.arriveLocked(a)
	return true
}

// arriveLocked records that a lock was acquired. If there is a detour, and the store that is
// usually asked first didn't grant the lock, the detour continues, since the attempt needed it.
// Otherwise the detour ends, and for a while a refusal by a single store is believed.
func (s *session) arriveLocked(a *attempt) {
	d, now := s.detours[a.h.name], time.Now()
	switch {
	case d == nil:
	case d.first == a.first && !a.yes.has(s.stores[home(a.h.name, len(s.stores))]):
		d.splits = 0
	default:
		*d = detour{sure: now.Add(sureFor), until: now.Add(sureFor)}
	}
}

// fail releases the votes of an attempt and returns its result or error.
func (s *session) fail(
	ctx context.Context, a *attempt, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	h := a.h
	s.mu.Lock()
	h.first = a.first
	burnt := len(s.inLocked(h, granted, doubtful)) > 0
	over := a.over()
	h.noted = h.noted || h.kind == backend.Write && req.Place > 0 && a.refused != nil
	if over && burnt || h.borrowed {
		s.dropLocked(h)
	}
	if !burnt && !h.noted {
		h.clear()
	}
	s.mu.Unlock()
	var pause time.Duration
	if a.isRefused() && a.yes != 0 && len(a.no) <= len(s.stores)-s.need {
		pause = s.sitOut(h.name) // the pause begins before the released votes wake others
	}
	if burnt && !over {
		s.giveBack(ctx, h, backend.ReleaseRequest{Kind: h.kind, Name: h.name, Lease: req.Lease},
			h.noted)
	}
	if !a.isRefused() {
		a.failures = append(a.failures, s.owed(req.Owner)...)
		return backend.AcquireResult{}, a.failure()
	}
	return backend.AcquireResult{Remaining: s.outlook(a, pause)}, nil
}

// outlook returns the time for which it would be pointless to repeat a refused attempt. If the
// votes were split between owners, that is at most the given pause.
func (s *session) outlook(a *attempt, pause time.Duration) time.Duration {
	slices.SortFunc(a.no, func(x, y reply[backend.AcquireResult]) int {
		return compareEnds(x.res.Remaining, y.res.Remaining)
	})
	yes := a.yes.size()
	decides := a.no[min(s.need-max(yes, 1), len(a.no))-1] // its vote would make a majority
	remaining := decides.res.Remaining
	switch {
	case pause > 0 && (remaining < 0 || pause < remaining):
		remaining = pause
	case pause > 0:
	case yes == 0:
		s.direct(a.h.name, a.refused, 0)
		s.follow(a.h.name, a.refused)
	default:
		// Another owner holds the lock, but not in the store that is usually asked first. The
		// owner's release will be announced at the stores that have the hold. The store that
		// refused first might not be one of them, since it might have only a leftover hold.
		s.direct(a.h.name, decides.from, remaining)
		s.follow(a.h.name, decides.from)
	}
	return remaining
}

// A detour is a temporary change of the order in which a session asks the stores for one lock.
type detour struct {
	first  *store // asked first, unless it is nil
	splits int    // the number of consecutive attempts with split votes
	quiet  time.Time
	sure   time.Time // until when a refusal by a single store is believed
	until  time.Time
}

const (
	longestDetour = 10 * time.Second
	mostDetours   = 1024
	sureFor       = time.Second
	leastSplit    = 5 * time.Millisecond
	mostSplits    = 6 // after this many, pauses don't grow
)

// order returns the stores in the order in which they are asked for the lock with the given name.
// Stores that are down come last.
func (s *session) order(name string) []*store {
	order := s.orders[home(name, len(s.stores))]
	var first *store
	s.mu.Lock()
	if d := s.detours[name]; d != nil && time.Now().Before(d.until) {
		first = d.first
	}
	s.mu.Unlock()
	if first == nil && !slices.ContainsFunc(order, (*store).isDown) {
		return order
	}
	var down set
	for _, st := range order {
		if st.isDown() {
			down.add(st)
		}
	}
	rank := func(st *store) int {
		switch {
		case down.has(st):
			return 2
		case st == first:
			return 0
		}
		return 1
	}
	order = slices.Clone(order)
	slices.SortStableFunc(order, func(x, y *store) int { return rank(x) - rank(y) })
	return order
}

// detourLocked returns the detour for a lock's name. It creates one if there is none.
func (s *session) detourLocked(name string) *detour {
	if d := s.detours[name]; d != nil {
		return d
	}
	if len(s.detours) >= mostDetours {
		now := time.Now()
		maps.DeleteFunc(s.detours, func(_ string, d *detour) bool { return now.After(d.until) })
	}
	if len(s.detours) >= mostDetours {
		clear(s.detours) // detours only save requests
	}
	d := &detour{}
	s.detours[name] = d
	return d
}

// direct makes the session ask the given store first for the lock with this name, until another
// owner's hold ends. The parameter remaining is how long that hold lasts. If it is 0, direct only
// resets the count of split votes.
func (s *session) direct(name string, first *store, remaining time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.detours[name]
	switch {
	case remaining == 0 && d != nil:
		d.splits = 0
		return
	case remaining == 0:
		return
	case remaining < 0 || remaining > longestDetour:
		remaining = longestDetour
	}
	d = s.detourLocked(name)
	*d = detour{first: first, sure: d.sure, until: time.Now().Add(remaining)}
}

// sitOut returns the pause after an attempt with split votes. The pause is random, so that
// competing owners don't try again at the same time.
func (s *session) sitOut(name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.detourLocked(name)
	d.splits = min(d.splits+1, mostSplits)
	most := leastSplit << d.splits
	pause := leastSplit + rand.N(most)
	now := time.Now()
	d.quiet = now.Add(pause)
	d.until = later(d.until, now.Add(longestDetour))
	return pause
}

// size returns the number of stores in the set.
func (x set) size() int { return bits.OnesCount64(uint64(x)) }

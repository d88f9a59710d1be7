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
	atOnce  bool     // all stores are asked at once
	left    []*store // stores that haven't been asked yet
	first   *store   // the first store that granted the lock
	yes     set
	no      []reply[backend.AcquireResult] // the first store that refused the lock comes first
	without int                            // stores that lack the Write that encloses this Read
}

// isRefused reports whether another owner holds the lock. For a Read within its owner's Write, one
// refusal isn't enough if another store has granted the Read. Otherwise the holder would be told
// that it lost the Write.
func (a *attempt) isRefused() bool {
	if a.h.borrowed && a.yes != 0 {
		return len(a.no) > 0 && len(a.no)+a.without > len(a.s.stores)-a.s.need
	}
	return len(a.no) > 0
}

// isSplit reports whether all stores were asked at once and their votes went to several owners.
func (a *attempt) isSplit() bool { return a.atOnce && a.yes != 0 && a.isRefused() }

// try makes one attempt. If stores refused the lock and no store granted it, the result alone is
// the first store that refused it.
//
// If a plain lock isn't known to be contested, try asks all stores at once. If their votes are then
// split between owners, it makes another attempt, and asks one store first.
func (s *session) try(
	ctx context.Context, h *hold, req backend.AcquireRequest,
) (res backend.AcquireResult, alone *store, err error) {
	s.mu.Lock()
	s.nameLocked(h)
	req.Owner, req.Reentry = h.attempt, false
	h.lease, h.ends = req.Lease, later(h.ends, time.Now().Add(max(req.Lease, req.Place)))
	var with, barred set // with is the set of stores that have the Write enclosing this Read
	w := s.lenderLocked(h)
	if w != nil {
		with, barred = s.haveLocked(w), w.barred
		h.barred = barred
	}
	s.mu.Unlock()

	a := &attempt{
		h: h, left: s.order(req.Name),
		atOnce: h.kind == backend.Exclusive && !s.isContested(h.name),
	}
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
	if a.atOnce {
		a.askAll()
	} else if a.askFirst(); a.yes != 0 {
		a.askOthers()
	}
	if s.note(a, req) {
		return backend.AcquireResult{Acquired: true, Count: 1}, nil, nil
	}
	if len(a.no) > 0 && a.yes == 0 && w == nil {
		alone = a.no[0].from
	}
	res, err = s.fail(ctx, a, req)
	if a.isSplit() && !a.over() {
		return s.try(ctx, h, req)
	}
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
	for a.yes == 0 && len(a.no) == 0 {
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
		a.no = append(a.no, rep)
	}
	return ok
}

// askAll asks all stores concurrently. It then chooses a.first and sorts a.no by the order of the
// stores, not by that of their answers, since other owners ask the stores in this order.
func (a *attempt) askAll() {
	order := a.left
	a.askOthers()
	if i := slices.IndexFunc(order, a.yes.has); i >= 0 {
		a.first = order[i]
	}
	slices.SortFunc(a.no, func(x, y reply[backend.AcquireResult]) int {
		return slices.Index(order, x.from) - slices.Index(order, y.from)
	})
}

// askOthers asks the other stores concurrently. It asks stores that are down only if the others
// can't form a majority. If a store has refused the lock, it asks them only once another store has
// granted it.
func (a *attempt) askOthers() {
	up := len(a.left)
	for up > 0 && a.left[up-1].isDown() {
		up--
	}
	a.ask(a.left[:up]...)
	a.left = a.left[up:]
	for {
		yes := a.yes.size()
		for yes+a.waiting < a.s.need && len(a.left) > 0 && (yes > 0 || len(a.no) == 0) {
			a.ask(a.left[0])
			a.left = a.left[1:]
		}
		decided := yes >= a.s.need || yes+a.waiting < a.s.need
		var deadline time.Time
		switch {
		case decided || len(a.left) > 0:
			deadline = a.deadline()
		case len(a.no) > 0:
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
	acquired := a.yes.size() >= s.need
	if acquired {
		h.count, h.first = 1, a.first
		s.arriveLocked(a)
	}
	if len(a.no) > 0 {
		s.contestLocked(h.name)
	}
	return acquired
}

// arriveLocked records that a contested lock was acquired. If the attempt took a detour, and the
// store that is usually asked first didn't grant the lock, the detour is still needed, so it
// continues. Otherwise it ends, and for a while the session believes a single store that refuses
// the lock.
func (s *session) arriveLocked(a *attempt) {
	c := s.contests[a.h.name]
	switch {
	case c == nil || a.atOnce:
	case c.first == a.first && !a.yes.has(s.stores[home(a.h.name, len(s.stores))]):
		c.splits = 0
	default:
		*c = contest{until: c.until, sure: time.Now().Add(sureFor)}
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
	h.noted = h.noted || h.kind == backend.Write && req.Place > 0 && len(a.no) > 0
	if over && burnt || h.borrowed {
		s.dropLocked(h)
	}
	if !burnt && !h.noted {
		h.clear()
	}
	s.mu.Unlock()
	var pause time.Duration
	if a.isSplit() || a.isRefused() && a.yes != 0 && len(a.no) <= len(s.stores)-s.need {
		pause = s.sitOut(h.name) // begin the pause before the release of the votes wakes others
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

// outlook returns how long it would be pointless to repeat a refused attempt. If the votes were
// split between owners, that is at most the given pause.
func (s *session) outlook(a *attempt, pause time.Duration) time.Duration {
	name, yes := a.h.name, a.yes.size()
	if yes == 0 {
		s.direct(name, a.no[0].from, 0)
		s.follow(name, a.no[0].from)
		return a.no[0].res.Remaining
	}
	slices.SortFunc(a.no, func(x, y reply[backend.AcquireResult]) int {
		return compareEnds(x.res.Remaining, y.res.Remaining)
	})
	decides := a.no[min(s.need-yes, len(a.no))-1] // its vote would make a majority
	remaining := decides.res.Remaining
	switch {
	case pause > 0 && (remaining < 0 || pause < remaining):
		remaining = pause
	case pause > 0:
	default:
		// Another owner holds the lock, but not in the store that is usually asked first, or is
		// just releasing it in all stores at once. The release will be announced at the stores that
		// have the hold. The store that refused first might not be one of them, since it might have
		// only a leftover hold.
		s.direct(name, decides.from, remaining)
		s.follow(name, decides.from)
	}
	return remaining
}

// A contest records that others want a lock, too. Until it ends, the session asks one store for the
// lock before it asks the others.
type contest struct {
	until  time.Time
	first  *store // a detour: the store to ask first until the time back; may be nil
	back   time.Time
	splits int       // the number of consecutive attempts with split votes
	quiet  time.Time // messages about releases wait until then
	sure   time.Time // a refusal by a single store is believed until then
}

const (
	// contestFor is how long a contest lasts after the last refusal. A call that waits for a lock
	// asks again within that time, even if no message arrives. So the contest lasts until the call
	// has the lock.
	contestFor    = 10 * time.Second
	longestDetour = 10 * time.Second
	mostContests  = 1024
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
	if c := s.contests[name]; c != nil && time.Now().Before(c.back) {
		first = c.first
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

// isContested reports whether others want the lock with this name, as far as the session knows.
func (s *session) isContested(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isContestedLocked(name)
}

func (s *session) isContestedLocked(name string) bool {
	c := s.contests[name]
	return c != nil && time.Now().Before(c.until)
}

// contestLocked begins or prolongs the contest for the lock with this name, and returns it. It is
// called when others turn out to want the lock.
func (s *session) contestLocked(name string) *contest {
	now := time.Now()
	c := s.contests[name]
	if c == nil || now.After(c.until) {
		if len(s.contests) >= mostContests {
			maps.DeleteFunc(s.contests, func(_ string, c *contest) bool {
				return now.After(c.until)
			})
		}
		if len(s.contests) >= mostContests {
			clear(s.contests) // contests only save requests
		}
		c = &contest{}
		s.contests[name] = c
	}
	c.until = now.Add(contestFor)
	return c
}

// direct makes the session ask the given store first for the lock with this name, usually until
// another owner's hold ends. The parameter remaining is how long to do so. If it is negative or too
// long, direct uses longestDetour. If it is 0, direct only resets the count of split votes.
func (s *session) direct(name string, first *store, remaining time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch c := s.contests[name]; {
	case remaining == 0 && c != nil:
		c.splits = 0
		return
	case remaining == 0:
		return
	case remaining < 0 || remaining > longestDetour:
		remaining = longestDetour
	}
	c := s.contestLocked(name)
	*c = contest{
		until: c.until, first: first, back: time.Now().Add(remaining), sure: c.sure,
	}
}

// sitOut returns the pause after an attempt with split votes. The pause is random, so that
// competing owners don't try again at the same time.
func (s *session) sitOut(name string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.contestLocked(name)
	c.splits = min(c.splits+1, mostSplits)
	most := leastSplit << c.splits
	pause := leastSplit + rand.N(most)
	c.quiet = time.Now().Add(pause)
	return pause
}

// size returns the number of stores in the set.
func (x set) size() int { return bits.OnesCount64(uint64(x)) }

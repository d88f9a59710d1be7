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
func (s *session) Acquire(ctx context.Context, req backend.AcquireRequest) (backend.AcquireResult, error) {
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

// count counts a re-entry.
func (s *session) count(h *hold) backend.AcquireResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.kind != backend.Read && h.count > 0 {
		h.count++
	}
	return backend.AcquireResult{Acquired: h.count > 0, Count: h.count}
}

// An attempt is one to get a majority.
type attempt struct {
	*round[backend.AcquireResult]
	h       *hold
	left    []*store // not asked yet
	first   *store   // to say yes
	yes     set
	no      []reply[backend.AcquireResult]
	refused *store // first to say no
	without int    // so many don't have the Write that a Read is under
}

// isRefused says whether somebody else has the lock. Where a store has given a Read under its owner's Write one no of another isn't enough: the
// holder would be told that it has lost the Write.
func (a *attempt) isRefused() bool {
	if a.h.borrowed && a.yes != 0 {
		return len(a.no) > 0 && len(a.no)+a.without > len(a.s.stores)-a.s.need
	}
	return a.refused != nil
}

// try is one attempt. It returns the store that has refused it if no other has been asked, or has
// said anything.
func (s *session) try(ctx context.Context, h *hold, req backend.AcquireRequest) (res backend.AcquireResult, alone *store, err error) {
	s.mu.Lock()
	s.nameLocked(h)
	req.Owner, req.Reentry = h.attempt, false
	h.lease, h.ends = req.Lease, later(h.ends, time.Now().Add(max(req.Lease, req.Place)))
	var with, barred set // who have the Write that a Read is under
	w := s.lenderLocked(h)
	if w != nil {
		with, barred = s.haveLocked(w), w.barred
		h.barred = barred
	}
	s.mu.Unlock()

	a := &attempt{h: h, left: s.order(req.Name)}
	if w != nil {
		a.left = slices.DeleteFunc(slices.Clone(a.left), func(st *store) bool { return !with.has(st) || barred.has(st) })
		a.without = len(s.stores) - with.size()
	}
	a.round = newRound(s, s.ctx, ctx, func(ctx context.Context, st *store) (backend.AcquireResult, error) {
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

// haveLocked returns the stores that have a hold. What others say may be about somebody else, so those that only may have it are among them if there is
// no majority without.
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

// askFirst asks one store after the other until one says yes or no. So of those who want the lock at the same time one gets the votes of all.
func (a *attempt) askFirst() {
	for a.yes == 0 && a.refused == nil {
		var deadline time.Time
		if len(a.left) > 0 {
			st := a.left[0]
			a.ask(st)
			a.left = a.left[1:]
			deadline = a.sent.Add(max(a.longest, st.least)) // one that was down may be all that is left
		}
		if !a.take(deadline) && (a.over() || a.waiting == 0 && len(a.left) == 0) {
			return
		}
	}
}

// take counts the next answer. If there is none in time, those who should have given it are known to be slow.
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

// askOthers asks the other stores at once; those that didn't answer lately only if it takes them.
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
			// Another has a vote, and may wait for the same store: both would keep theirs, and all
			// others out.
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

// note writes down what the stores have said, and says whether that is a lock.
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
	h.ends = later(h.ends, time.Now().Add(req.Lease)) // of those who haven't answered
	if a.yes.size() < s.need {
		return false
	}
	h.count, h.first = 1, a.first
	s.arriveLocked(a)
	return true
}

// arriveLocked ends the detour of a name that was acquired, unless the store that it goes round
// hasn't granted it.
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

// fail gives back what an attempt has got, and says why it failed.
func (s *session) fail(ctx context.Context, a *attempt, req backend.AcquireRequest) (backend.AcquireResult, error) {
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
		pause = s.sitOut(h.name) // begins before the wake-up by what is given back
	}
	if burnt && !over {
		s.giveBack(ctx, h, backend.ReleaseRequest{Kind: h.kind, Name: h.name, Lease: req.Lease}, h.noted)
	}
	if !a.isRefused() {
		a.failures = append(a.failures, s.owed(req.Owner)...)
		return backend.AcquireResult{}, a.failure()
	}
	return backend.AcquireResult{Remaining: s.outlook(a, pause)}, nil
}

// outlook says for how long an attempt that was refused need not be repeated: for a pause if votes
// were split.
func (s *session) outlook(a *attempt, pause time.Duration) time.Duration {
	slices.SortFunc(a.no, func(x, y reply[backend.AcquireResult]) int { return compareEnds(x.res.Remaining, y.res.Remaining) })
	yes := a.yes.size()
	decides := a.no[min(s.need-max(yes, 1), len(a.no))-1] // with it there would be a majority
	remaining := decides.res.Remaining
	switch {
	case pause > 0 && (remaining < 0 || pause < remaining):
		remaining = pause
	case pause > 0:
	case yes == 0:
		s.direct(a.h.name, a.refused, 0)
		s.follow(a.h.name, a.refused)
	default:
		// Somebody has it without the store that we ask first, and releases where the others are; but
		// not where one of these has a leftover, which may have been the first to say no.
		s.direct(a.h.name, decides.from, remaining)
		s.follow(a.h.name, decides.from)
	}
	return remaining
}

// A detour is how a session deviates from the usual with one name, for a while.
type detour struct {
	first  *store // is asked first, if it isn't nil
	splits int    // so many attempts in a row were split
	quiet  time.Time
	sure   time.Time // until then a store that refuses alone is believed
	until  time.Time
}

const (
	longestDetour = 10 * time.Second
	mostDetours   = 1024
	sureFor       = time.Second
	leastSplit    = 5 * time.Millisecond
	mostSplits    = 6 // after that pauses don't grow
)

// order returns the stores in the order in which they are asked for a name: those that haven't answered lately last.
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

// detourLocked returns the detour of a name, or a new one.
func (s *session) detourLocked(name string) *detour {
	if d := s.detours[name]; d != nil {
		return d
	}
	if len(s.detours) >= mostDetours {
		now := time.Now()
		maps.DeleteFunc(s.detours, func(_ string, d *detour) bool { return now.After(d.until) })
	}
	if len(s.detours) >= mostDetours {
		clear(s.detours) // they save requests, and no more
	}
	d := &detour{}
	s.detours[name] = d
	return d
}

// direct has a name asked for first at a store, for a while; or as usual, if that is zero.
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

// sitOut returns for how long whoever has got some votes, as others have, waits before the next attempt: not as long as they.
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

// size returns how many they are.
func (x set) size() int { return bits.OnesCount64(uint64(x)) }

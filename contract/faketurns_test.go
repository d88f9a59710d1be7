package contract

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// fakeTurns is what the sessions of a fakeStore remember together, for its faults in permits and
// fair locks.
type fakeTurns struct {
	fault string
	steps atomic.Int32 // under way

	mu sync.Mutex
	// the first limit of each name, or one that should be forgotten
	told    map[string]int
	workers map[string]map[string]int // those that have asked for permits, and for how many
	waiting map[string][]string       // those that have asked for a place
	kept    map[holdID]bool           // those that held a lock as their place was to be kept
	ears    map[string][]*turnsEar    // those that want to hear of grants
	// owners that were given a lock after a hold ran out, and weren't told
	overdue map[string]string
	quiet   bool // nobody is woken
}

func newFakeTurns(fault string) *fakeTurns {
	return &fakeTurns{
		fault:   fault,
		told:    make(map[string]int),
		workers: make(map[string]map[string]int),
		waiting: make(map[string][]string),
		kept:    make(map[holdID]bool),
		ears:    make(map[string][]*turnsEar),
		overdue: make(map[string]string),
	}
}

// with runs f with the mutex held.
func (st *fakeTurns) with(f func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f()
}

// turnsFake is a session of membackend with one of these faults.
type turnsFake struct {
	memSession
	st  *fakeTurns
	own atomic.Bool // it takes a step
}

// begin is what every step begins with.
func (s *turnsFake) begin() (end func()) {
	s.st.steps.Add(1)
	s.own.Store(true)
	return func() {
		s.own.Store(false)
		s.st.steps.Add(-1)
	}
}

func (s *turnsFake) look(
	ctx context.Context, k backend.Kind, name, owner string,
) backend.LookResult {
	res, _ := s.memSession.Look(ctx, backend.LookRequest{
		Kind: k, Name: name, Owner: owner, Limit: 1000,
	})
	return res
}

func (s *turnsFake) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	defer s.begin()()
	switch req.Kind {
	case backend.Permits:
		return s.acquirePermits(ctx, req)
	case backend.Fair:
		return s.acquireFair(ctx, req)
	default:
		return s.memSession.Acquire(ctx, req)
	}
}

func (s *turnsFake) acquirePermits(
	ctx context.Context, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	st := s.st
	before := s.look(ctx, backend.Permits, req.Name, req.Owner)
	has := before.Count == req.Permits
	switch st.fault {
	case "one permit too many":
		if req.Limit > 0 && req.Permits <= req.Limit {
			req.Limit++
		}
	case "attempts for permits keep the lease":
		if has {
			return backend.AcquireResult{Acquired: true, Count: req.Permits}, nil
		}
	case "permits are counted again":
		if has {
			other := req
			other.Owner, other.Limit = ghost(req.Owner), 1000
			defer s.memSession.Acquire(ctx, other)
		}
	case "a part of permits is kept":
		if before.Count > 0 && !has {
			req.Permits -= before.Count
			req.Owner = ghost(req.Owner)
		}
	case "permits never end":
		req.Lease = never
	case "the first limit stays":
		st.with(func() {
			if st.told[req.Name] == 0 {
				st.told[req.Name] = req.Limit
			}
			req.Limit = st.told[req.Name]
		})
	case "a renewal tells of its owner's limit again":
		st.with(func() { st.told[req.Name+" of "+req.Owner] = req.Limit })
	case "no limit means no end":
		if req.Limit == 0 && before.Held {
			req.Limit = 1000
		}
	case "who isn't told of a limit takes its own":
		if req.Limit == 0 && !before.Held {
			req.Limit = req.Permits
		}
	case "a limit that rises is silent":
		s.mute(before.Count == 0 || has)
		defer s.mute(false)
	case "parts of permits are given back silently":
		s.mute(before.Count > 0 && !has)
		defer s.mute(false)
	case "permits in two steps":
		if !has && before.Available-1000+req.Limit >= req.Permits {
			time.Sleep(time.Millisecond)
			req.Limit = 1000
		}
	case "too many is said of a lock":
		if req.Limit > 0 && req.Permits > req.Limit {
			return res, &backend.Error{Kind: backend.Refused, Err: backend.ErrTooMany}
		}
	case "too many tells of the limit":
		st.with(func() {
			if req.Permits > req.Limit && req.Limit > 0 {
				st.told[req.Name] = req.Limit
			} else if req.Limit == 0 && !before.Held {
				req.Limit = st.told[req.Name]
			}
		})
	}
	res, err = s.memSession.Acquire(ctx, req)
	if st.fault == "too many wait" && errors.Is(err, backend.ErrTooMany) {
		return backend.AcquireResult{Remaining: -1}, nil
	}
	if err != nil {
		return res, err
	}
	if !res.Acquired {
		s.keptOut(ctx, req, &res)
		return res, nil
	}
	st.with(func() {
		if st.workers[req.Name] == nil {
			st.workers[req.Name] = make(map[string]int)
		}
		st.workers[req.Name][req.Owner] = req.Permits
	})
	if st.fault == "permits have one expiry" {
		s.renewAll(ctx, req.Name, req.Lease)
	}
	return res, nil
}

// keptOut is what goes wrong when permits aren't acquired.
func (s *turnsFake) keptOut(
	ctx context.Context, req backend.AcquireRequest, res *backend.AcquireResult,
) {
	now := s.look(ctx, backend.Permits, req.Name, req.Owner)
	switch s.st.fault {
	case "permits in part":
		for req.Owner, req.Limit = ghost(req.Owner), 0; req.Permits > 1; {
			req.Permits--
			if got, _ := s.memSession.Acquire(ctx, req); got.Acquired {
				return
			}
		}
	case "the last of the permits is told":
		res.Remaining = now.Remaining
	case "another number waits for an hour":
		if had := s.st.having(req.Name)[req.Owner]; had > 0 && had != req.Permits {
			res.Remaining = time.Hour
		}
	}
}

// having returns who has acquired permits, and how many.
func (st *fakeTurns) having(name string) (workers map[string]int) {
	st.with(func() { workers = maps.Clone(st.workers[name]) })
	return workers
}

// renewAll prolongs everybody's permits.
func (s *turnsFake) renewAll(ctx context.Context, name string, lease time.Duration) {
	for owner, n := range s.st.having(name) {
		s.memSession.Renew(ctx, backend.RenewRequest{
			Kind: backend.Permits, Name: name, Owner: owner, Lease: lease, Permits: n,
		})
	}
}

func (s *turnsFake) acquireFair(
	ctx context.Context, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	st := s.st
	before := s.look(ctx, backend.Fair, req.Name, req.Owner)
	place := req.Place
	defer st.with(func() {
		if place > 0 {
			st.waiting[req.Name] = append(st.waiting[req.Name], req.Owner)
		}
	})
	switch st.fault {
	case "newcomers come first":
		req.Place = 0
	case "fair attempts are counted again":
		req.Reentry = true
	case "fair attempts shorten":
		if before.Count > 0 && !req.Reentry {
			s.memSession.Renew(ctx, backend.RenewRequest{
				Kind: backend.Fair, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
			})
		}
	case "fair re-entries are not counted":
		req.Reentry = false
	case "given and asked for is refused":
		if before.Count > 0 && !req.Reentry && before.Remaining <= time.Second {
			return backend.AcquireResult{Remaining: before.Remaining}, nil
		}
	case "an attempt without a place stands in line":
		if place == 0 {
			req.Place = never
		}
	case "places never end":
		if place > 0 {
			req.Place = never
		}
	case "asking again loses the place":
		if before.Count == 0 {
			s.giveUp(ctx, req.Name, req.Owner)
		}
	case "who comes takes what ran out":
		if owner := st.late(req.Name); owner != "" && owner != req.Owner {
			s.giveUp(ctx, req.Name, owner)
		}
	}
	res, err = s.memSession.Acquire(ctx, req)
	if err != nil || res.Acquired {
		return res, err
	}
	switch st.fault {
	case "newcomers come first", "asking shortens a place":
		if place > 0 {
			s.keep(ctx, req.Name, place, req.Owner)
		}
	case "places are told half of it":
		res.Remaining /= 2
	}
	return res, nil
}

// late returns who was given the lock by the end of a hold, once.
func (st *fakeTurns) late(name string) (owner string) {
	st.with(func() {
		owner = st.overdue[name]
		delete(st.overdue, name)
	})
	return owner
}

func (s *turnsFake) giveUp(ctx context.Context, name, owner string) backend.ReleaseResult {
	res, _ := s.memSession.Release(ctx, backend.ReleaseRequest{
		Kind: backend.Fair, Name: name, Owner: owner, Lease: time.Hour,
	})
	return res
}

func (s *turnsFake) keep(
	ctx context.Context, name string, place time.Duration, owners ...string,
) backend.PlacesResult {
	res, _ := s.memSession.KeepPlaces(ctx, backend.PlacesRequest{
		Kind: backend.Fair, Name: name, Owners: owners, Place: place,
	})
	return res
}

// clear lets everybody leave the line.
func (s *turnsFake) clear(ctx context.Context, name string) {
	var waiting []string
	s.st.with(func() {
		waiting = s.st.waiting[name]
		delete(s.st.waiting, name)
	})
	for _, owner := range waiting {
		if s.look(ctx, backend.Fair, name, owner).Count == 0 {
			s.giveUp(ctx, name, owner)
		}
	}
}

// wipe lets everybody leave all lines.
func (s *turnsFake) wipe() {
	var names []string
	s.st.with(func() { names = slices.Collect(maps.Keys(s.st.waiting)) })
	for _, name := range names {
		s.clear(context.Background(), name)
	}
}

// holder returns who of those who have stood in line holds the lock.
func (s *turnsFake) holder(ctx context.Context, name string, among []string) string {
	for _, owner := range among {
		if s.look(ctx, backend.Fair, name, owner).Count > 0 {
			return owner
		}
	}
	return ""
}

func (s *turnsFake) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	defer s.begin()()
	st := s.st
	before := s.look(ctx, req.Kind, req.Name, req.Owner)
	switch {
	case req.Kind == backend.Permits:
		return s.releasePermits(ctx, req, before)
	case req.Kind != backend.Fair:
		return s.memSession.Release(ctx, req)
	}
	switch st.fault {
	case "giving up is ignored":
		if before.Count == 0 {
			return res, nil
		}
	case "giving up empties the line":
		if before.Count == 0 {
			s.clear(ctx, req.Name)
		}
	case "who gives up keeps what it was given":
		if before.Count == 1 && before.Remaining <= time.Second {
			return res, nil
		}
	case "keep makes places for holders":
		var kept bool
		st.with(func() { kept = st.kept[holdID{req.Name, req.Owner}] })
		if kept && before.Count == 1 {
			defer s.keep(ctx, req.Name, never, req.Owner)
		}
	}
	return s.memSession.Release(ctx, req)
}

func (s *turnsFake) releasePermits(
	ctx context.Context, req backend.ReleaseRequest, before backend.LookResult,
) (res backend.ReleaseResult, err error) {
	part := before.Count > 0 && before.Count != req.Permits
	switch s.st.fault {
	case "a part of permits is kept":
		if part {
			return res, nil
		}
	case "parts of permits are given back silently":
		s.mute(part)
		defer s.mute(false)
	case "release gives back everybody's permits":
		if before.Count > 0 {
			s.memSession.ForceRelease(ctx, backend.ForceReleaseRequest{
				Kind: backend.Permits, Name: req.Name,
			})
			return backend.ReleaseResult{Outcome: backend.Freed}, nil
		}
	}
	res, err = s.memSession.Release(ctx, req)
	if s.st.fault == "a permit leaks" && res.Outcome == backend.Freed && req.Permits > 1 {
		s.memSession.Acquire(ctx, backend.AcquireRequest{
			Kind: backend.Permits, Name: req.Name, Owner: ghost(req.Owner), Lease: never,
			Permits: 1, Limit: 1000,
		})
	}
	return res, err
}

func (s *turnsFake) Renew(
	ctx context.Context, req backend.RenewRequest,
) (res backend.RenewResult, err error) {
	defer s.begin()()
	if req.Kind != backend.Permits {
		return s.memSession.Renew(ctx, req)
	}
	count := s.look(ctx, backend.Permits, req.Name, req.Owner).Count
	part := count > 0 && count != req.Permits
	switch s.st.fault {
	case "a part of permits is kept":
		if part {
			return res, nil
		}
	case "a part of permits is renewed":
		if part {
			req.Permits = count
		}
	case "parts of permits are given back silently":
		s.mute(part)
		defer s.mute(false)
	case "renewal of permits is everybody's", "permits have one expiry":
		s.renewAll(ctx, req.Name, req.Lease)
	case "a renewal tells of its owner's limit again":
		again := backend.AcquireRequest{
			Kind: req.Kind, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
			Permits: req.Permits,
		}
		s.st.with(func() { again.Limit = s.st.told[req.Name+" of "+req.Owner] })
		if count == req.Permits {
			s.memSession.Acquire(ctx, again)
		}
	}
	return s.memSession.Renew(ctx, req)
}

func (s *turnsFake) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (res backend.ForceReleaseResult, err error) {
	defer s.begin()()
	switch st := s.st; {
	case st.fault == "force takes one owner's permits" && req.Kind == backend.Permits:
		for owner, n := range st.having(req.Name) {
			rel, _ := s.memSession.Release(ctx, backend.ReleaseRequest{
				Kind: backend.Permits, Name: req.Name, Owner: owner, Permits: n,
			})
			if rel.Outcome == backend.Freed {
				return backend.ForceReleaseResult{Released: true}, nil
			}
		}
	case st.fault == "force drops the line" && req.Kind == backend.Fair:
		s.clear(ctx, req.Name)
	}
	return s.memSession.ForceRelease(ctx, req)
}

func (s *turnsFake) Look(
	ctx context.Context, req backend.LookRequest,
) (res backend.LookResult, err error) {
	res, err = s.memSession.Look(ctx, req)
	switch s.st.fault {
	case "available is less than none":
		if err == nil && req.Limit > 0 && req.Kind == backend.Permits {
			res.Available = s.look(ctx, backend.Permits, req.Name, "").Available - 1000 + req.Limit
		}
	case "who isn't told of a limit takes its own":
		if errors.Is(err, backend.ErrNoLimit) {
			return res, nil
		}
	case "what ran out moves nobody":
		var owner string
		s.st.with(func() { owner = s.st.overdue[req.Name] })
		if owner != "" && s.look(ctx, backend.Fair, req.Name, owner).Count > 0 &&
			req.Kind == backend.Fair {
			return backend.LookResult{}, err
		}
	}
	return res, err
}

func (s *turnsFake) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (res backend.PlacesResult, err error) {
	defer s.begin()()
	st := s.st
	var known []string
	st.with(func() { known = slices.Clone(st.waiting[req.Name]) })
	defer st.with(func() { st.waiting[req.Name] = append(st.waiting[req.Name], req.Owners...) })
	inLine := func(owner string) bool { return slices.Contains(known, owner) }
	switch st.fault {
	case "keep loses places", "who comes back comes last":
		for _, owner := range req.Owners {
			if st.fault == "keep loses places" &&
				s.look(ctx, backend.Fair, req.Name, owner).Count == 0 {
				s.giveUp(ctx, req.Name, owner)
			}
			s.memSession.Acquire(ctx, backend.AcquireRequest{
				Kind: backend.Fair, Name: req.Name, Owner: owner, Lease: time.Second,
				Place: req.Place,
			})
		}
	case "keep doesn't prolong":
		if !slices.ContainsFunc(req.Owners, func(owner string) bool { return !inLine(owner) }) {
			return backend.PlacesResult{Holder: s.holder(ctx, req.Name, req.Owners),
				Remaining: s.look(ctx, backend.Fair, req.Name, "").Remaining}, nil
		}
	case "places that are kept never end":
		req.Place = never
	case "who comes back comes in another order":
		req.Owners = slices.Clone(req.Owners)
		slices.Reverse(req.Owners)
	case "nobody comes back":
		req.Owners = slices.DeleteFunc(slices.Clone(req.Owners), func(owner string) bool {
			return !inLine(owner)
		})
	case "keep makes places for holders":
		st.with(func() {
			for _, owner := range req.Owners {
				st.kept[holdID{req.Name, owner}] = s.look(ctx, backend.Fair, req.Name, owner).
					Count > 0
			}
		})
	case "keep leaves what is free":
		if !s.look(ctx, backend.Fair, req.Name, "").Held {
			return res, nil
		}
	}
	res, err = s.memSession.KeepPlaces(ctx, req)
	switch st.fault {
	case "keep names no holder":
		res.Holder = ""
	case "keep names whoever holds":
		res.Holder = s.holder(ctx, req.Name, append([]string{"a"}, known...))
	}
	return res, err
}

// turnsEar is a subscription to a fair lock.
type turnsEar struct {
	s       *turnsFake
	granted func(backend.Grant)
}

func (s *turnsFake) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	wake := req.Wake
	req.Wake = func(w backend.Wakeup) {
		if !s.muted() {
			wake(w)
		}
	}
	if req.Granted != nil {
		x := &turnsEar{s, req.Granted}
		s.st.with(func() { s.st.ears[req.Name] = append(s.st.ears[req.Name], x) })
		name := req.Name
		req.Granted = func(g backend.Grant) { s.tell(name, x, g) }
	}
	return s.memSession.Subscribe(ctx, req)
}

// mute lets nobody be woken, or lets everybody be.
func (s *turnsFake) mute(quiet bool) { s.st.with(func() { s.st.quiet = quiet }) }

func (s *turnsFake) muted() (quiet bool) {
	s.st.with(func() { quiet = s.st.quiet })
	return quiet
}

// tell is what goes wrong with a grant.
func (s *turnsFake) tell(name string, x *turnsEar, g backend.Grant) {
	st := s.st
	alone := st.steps.Load() == 0 // a hold ran out
	switch st.fault {
	case "grants aren't told":
		return
	case "grants are told to all":
		var ears []*turnsEar
		st.with(func() { ears = slices.Clone(st.ears[name]) })
		for _, x := range ears {
			x.granted(g)
		}
		return
	case "grants name another":
		g.Owner = "another"
	case "Since is in the future":
		g.Since = g.Since.Add(10 * time.Second)
	case "grants promise too much":
		g.Lease *= 3
	case "grants last":
		s.memSession.Renew(context.Background(), backend.RenewRequest{
			Kind: backend.Fair, Name: name, Owner: g.Owner, Lease: never,
		})
	case "who comes takes what ran out", "what ran out moves nobody":
		if alone {
			st.with(func() { st.overdue[name] = g.Owner })
			return
		}
	case "sessions aren't told of their own steps":
		if s.own.Load() {
			return
		}
	}
	x.granted(g)
}

// turnFaults are ways in which a store can be wrong about permits and fair locks.
var turnFaults = []storeFault{
	{"one permit too many", "permits/count", true},
	{"permits in part", "permits/count", true},
	{"permits are counted again", "permits/again", true},
	{"another number waits for an hour", "permits/another number, refused", false},
	{"attempts for permits keep the lease", "permits/again", true},
	{"the last of the permits is told", "permits/remaining", true},
	{"a permit leaks", "permits/release", true},
	{"release gives back everybody's permits", "permits/release", true},
	{"renewal of permits is everybody's", "permits/renew", true},
	{"permits have one expiry", "permits/each end by themselves", true},
	{"permits never end", "permits/all end", true},
	{"a part of permits is kept", "permits/part of them", false},
	{"a part of permits is renewed", "permits/part of them", false},
	{"force takes one owner's permits", "permits/force", true},
	{"the first limit stays", "permits/limit", true},
	{"available is less than none", "permits/limit", true},
	{"no limit means no end", "permits/as told", true},
	{"a renewal tells of its owner's limit again", "permits/renewals tell nothing", false},
	{"who isn't told of a limit takes its own", "permits/never told", true},
	{"too many wait", "permits/too many", true},
	{"too many tells of the limit", "permits/too many", true},
	{"too many is said of a lock", "permits/too many of a lock", true},
	{"owners fold case", "permits/owners", false},
	{"batch has one number", "permits/batch", false},
	{"permits in two steps", "permits/at once", true},
	{"a limit that rises is silent", "notifier/permits", false},
	{"parts of permits are given back silently", "notifier/permits", false},
	{"leases run out early", "as permits/lease/kept", true},

	{"newcomers come first", "fair/order", true},
	{"grants are told to all", "fair/order", false},
	{"fair attempts are counted again", "fair/again", true},
	{"fair attempts shorten", "fair/again", true},
	{"fair re-entries are not counted", "as fair/acquire/again", true},
	{"given and asked for is refused", "fair/given and asked for", true},
	{"an attempt without a place stands in line", "fair/no place", true},
	{"places are told half of it", "fair/remaining", true},
	{"who comes takes what ran out", "fair/not before its turn", false},
	{"what ran out moves nobody", "fair/moved by any step", false},
	{"grants last", "fair/dead heir", false},
	{"places never end", "fair/place ends", true},
	{"asking again loses the place", "fair/place kept by asking", true},
	{"asking shortens a place", "fair/place kept by asking", false},
	{"giving up is ignored", "fair/given up", true},
	{"giving up empties the line", "fair/given up", true},
	{"who gives up keeps what it was given", "fair/given up too late", true},
	{"keep loses places", "fair/keep", true},
	{"keep doesn't prolong", "fair/keep", true},
	{"places that are kept never end", "fair/keep ends", true},
	{"who comes back comes last", "fair/back in line", true},
	{"who comes back comes in another order", "fair/back in line", true},
	{"keep makes places for holders", "fair/keep and hold", true},
	{"keep names no holder", "fair/keep and hold", true},
	{"keep names whoever holds", "fair/keep and hold", true},
	{"keep leaves what is free", "fair/keep what is free", true},
	{"grants aren't told", "fair/told", false},
	{"grants name another", "fair/told", false},
	{"Since is in the future", "fair/told", false},
	{"grants promise too much", "fair/told", false},
	{"sessions aren't told of their own steps", "fair/told by KeepPlaces", false},
	{"force drops the line", "fair/force", true},
	{"fair and plain are two locks", "fair/and plain", true},
	{"owners fold case", "fair/owners", false},
	{"acquire in two steps", "fair/at once", false},
	{"keep names no holder", "fair/broken subscription", true},
	{"nobody comes back", "fair/wiped", true},
	{"ended context: says Refused", "fair/context over", false},
	{"subscription stands late", "fair/told at once", false},
	{"closed subscription goes on", "fair/told no longer", false},
	{"one subscription per session", "fair/told of many", false},
	{"subscriptions fold case", "fair/told of many", false},
	{"break is restored silently", "fair/told after a break", false},
	{"break is final", "fair/told after a break", false},
}

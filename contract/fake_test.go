package contract

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// fakeStore is a membackend that can do everything a harness can ask for, and has one fault.
type fakeStore struct {
	fault string
	mem   *membackend.Backend
	back  memSession    // to do what no client could
	done  chan struct{} // closed when the test ends, as the client of the store is

	mu       sync.Mutex
	foreign  map[string]bool      // values that are no lock; true while unchanged
	owners   map[string]string    // the last to acquire each lock
	opened   map[string]*fake     // in which session
	counts   map[string]bool      // which locks were re-entered
	noted    map[string]time.Time // when each lock's lease is said to end
	taken    map[string]bool      // which locks were acquired and not released
	heired   map[string]time.Time // when each lock was acquired last after its lease had run out
	version  int                  // how many holds were begun since the last loss
	versions map[string]int       // the version of each lock's hold
	subs     []*fakeSub
	limits   int
	batches  int
	// whether anybody has waited, when a release was asked that
	waited  bool
	seen    map[string]backend.Inspection // what Inspect has reported of each lock last
	kinds   *fakeKinds
	turns   *fakeTurns
	keeps   *fakeKeeps
	busy    atomic.Int32
	counted atomic.Int32 // CountDowns of latches
}

type memSession interface {
	backend.Session
	backend.Notifier
	backend.BatchRenewer
	backend.Liner
	backend.Inspector
	backend.Lister
	backend.Latcher
}

func newFakeStore(t *testing.T, fault string) *fakeStore {
	mem := membackend.New()
	st := &fakeStore{
		fault:    fault,
		mem:      mem,
		back:     mem.Open().(memSession),
		done:     make(chan struct{}),
		foreign:  make(map[string]bool),
		owners:   make(map[string]string),
		opened:   make(map[string]*fake),
		counts:   make(map[string]bool),
		noted:    make(map[string]time.Time),
		taken:    make(map[string]bool),
		heired:   make(map[string]time.Time),
		versions: make(map[string]int),
		seen:     make(map[string]backend.Inspection),
		kinds:    newFakeKinds(fault),
		turns:    newFakeTurns(fault),
		keeps:    newFakeKeeps(fault),
	}
	t.Cleanup(func() { close(st.done) })
	return st
}

func (st *fakeStore) store() Store {
	return Store{
		Backend:    func() backend.Backend { return st },
		PutForeign: func(name string) { st.with(func() { st.foreign[name] = true }) },
		ForeignIntact: func(name string) (intact bool) {
			st.with(func() { intact = st.foreign[name] })
			return intact
		},
		Wipe:               st.wipe,
		BreakSubscriptions: st.breakSubscriptions,
		Fragile:            st.fragile,
	}
}

func (st *fakeStore) with(f func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f()
}

func (st *fakeStore) Open() backend.Session {
	keeps := &keepFake{memSession: st.mem.Open().(memSession), st: st.keeps}
	turns := &turnsFake{memSession: keeps, st: st.turns}
	return &fake{st: st, in: &kindsFake{memSession: turns, st: st.kinds}}
}

func (st *fakeStore) Limits() (l backend.Limits) {
	l = st.mem.Limits()
	if strings.HasPrefix(st.fault, "undeclared kinds") {
		l.Kinds = backend.KindsOf(backend.Fenced)
	}
	if st.fault == "what is kept is rounded up" {
		l.MinLease, l.LeaseStep = coarse.MinLease, coarse.LeaseStep
	}
	if st.fault == "limits vary" {
		st.with(func() { st.limits++; l.MinLease = time.Duration(st.limits) * time.Millisecond })
	}
	return l
}

func (st *fakeStore) wipe() {
	st.with(func() {
		st.version = 0
		clear(st.versions)
	})
	(&turnsFake{memSession: st.back, st: st.turns}).wipe()
	if st.fault != "wipe leaves locks" {
		st.mem.Wipe() // all at once: one who gets in afterwards keeps what it got
	}
	if st.fault == "wipe ends subscriptions" {
		for _, sub := range st.standing() {
			sub.cut()
		}
	}
}

// standing returns the subscriptions that are not closed.
func (st *fakeStore) standing() []*fakeSub {
	st.mu.Lock()
	defer st.mu.Unlock()
	var subs []*fakeSub
	for _, sub := range st.subs {
		if !sub.closed {
			subs = append(subs, sub)
		}
	}
	return subs
}

// breakSubscriptions cuts all subscriptions. They stand again a little later.
func (st *fakeStore) breakSubscriptions() {
	for _, sub := range st.standing() {
		sub.cut()
		if st.fault == "break is final" {
			continue
		}
		time.AfterFunc(5*time.Millisecond, func() {
			st.mu.Lock()
			if sub.closed {
				st.mu.Unlock()
				return
			}
			sub.in, _ = sub.s.in.Subscribe(context.Background(), sub.req)
			st.mu.Unlock()
			if st.fault != "break is restored silently" {
				sub.req.Wake(0)
			}
		})
	}
}

// name and owner are what the store makes of those in a request.
func (st *fakeStore) name(name, owner string) string {
	switch {
	case st.fault == "names fold case":
		return strings.ToLower(name)
	case st.fault == "names are trimmed":
		return strings.TrimSpace(name) + "."
	case st.fault == "names end at 256" && len(name) > 256:
		return name[:256]
	case st.fault == "names run into owners" && owner != "":
		return name + owner
	}
	return name
}

func (st *fakeStore) owner(owner string) string {
	switch st.fault {
	case "owners fold case":
		return strings.ToLower(owner)
	case "owners end at NUL":
		owner, _, _ = strings.Cut(owner, "\x00")
		return owner
	}
	return owner
}

// lastOwner returns the last owner that acquired the lock. If the lock is held, it is the holder.
func (st *fakeStore) lastOwner(name string) (owner string) {
	st.with(func() { owner = st.owners[name] })
	return owner
}

// note remembers when a lock's lease is said to end.
func (st *fakeStore) note(name string, lease time.Duration, really bool) {
	if really {
		st.with(func() { st.noted[name] = time.Now().Add(lease) })
	}
}

const leaseError = 10 * time.Minute // longer than the suite waits for anything, even in a bubble

// lease is how long the store lets a lease last.
func (st *fakeStore) lease(lease time.Duration) time.Duration {
	switch st.fault {
	case "leases run out late", "leases run out when looked at":
		return lease + leaseError
	case "leases run out early":
		return lease - lease/4
	}
	return lease
}

// remaining is what the store says about a lease, so that it doesn't give its error away.
func (st *fakeStore) remaining(rest time.Duration) time.Duration {
	switch st.fault {
	case "leases run out late", "leases run out when looked at":
		return max(rest-leaseError, 0)
	case "leases run out early":
		return rest + rest/3
	}
	return rest
}

// check is what every step begins with.
func (st *fakeStore) check(name string) error {
	var foreign bool
	st.with(func() { _, foreign = st.foreign[name] })
	switch {
	case !foreign:
		return nil
	case st.fault == "foreign: kind is Unknown":
		return backend.ErrConflict
	case st.fault == "foreign: one kind counts as a lock" && strings.HasSuffix(name, "1"):
		return nil
	}
	return &backend.Error{Kind: backend.Refused, Err: backend.ErrConflict}
}

// over is the result of a step whose context is over. With carryOut the step is carried out, and an
// error is returned nevertheless.
func (st *fakeStore) over(ctx context.Context) (carryOut bool, err error) {
	if ctx.Err() == nil {
		return false, nil
	}
	switch st.fault {
	case "ended context: done, says Retry":
		return true, &backend.Error{Kind: backend.Retry, Err: ctx.Err()}
	case "ended context: says Refused":
		return false, &backend.Error{Kind: backend.Refused, Err: ctx.Err()}
	}
	return false, &backend.Error{Kind: backend.Retry, Err: ctx.Err()}
}

// fake is a session of a fakeStore.
type fake struct {
	st     *fakeStore
	in     memSession
	spoilt atomic.Bool
	closed atomic.Bool
	names  sync.Map // that it has acquired, with their owners
	began  sync.Map // the version of each hold that it began, by holdID
}

type holdID struct{ name, owner string }

// impostor returns the holder of a lock if the lock has the version of another hold that this
// session began. Otherwise it returns the owner of that other hold.
func (s *fake) impostor(name, owner string) string {
	version, ok := s.began.Load(holdID{name, owner})
	last := s.st.lastOwner(name)
	s.st.with(func() { ok = ok && version == s.st.versions[name] })
	if !ok {
		return owner
	}
	return last
}

func (s *fake) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	st := s.st
	st.busy.Add(1)
	defer st.busy.Add(-1)
	if carryOut, err := st.over(ctx); err != nil {
		if carryOut {
			s.Acquire(context.Background(), req)
		}
		if st.fault == "ended context: not done, says nothing" {
			return backend.AcquireResult{Acquired: true}, nil
		}
		return res, err
	}
	if err := st.check(req.Name); err != nil {
		if st.fault == "foreign: acquire overwrites" {
			st.with(func() { st.foreign[req.Name] = false })
		}
		return res, err
	}
	req.Name, req.Owner = st.name(req.Name, req.Owner), st.owner(req.Owner)
	req.Lease = st.lease(req.Lease)
	before, _ := s.in.Look(ctx, backend.LookRequest{
		Kind: req.Kind, Name: req.Name, Owner: req.Owner,
	})
	switch again := before.Count > 0; st.fault {
	case "acquire takes what another holds":
		if before.Held && !again {
			s.in.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: req.Kind, Name: req.Name})
		}
	case "acquire in two steps":
		time.Sleep(time.Millisecond)
		if !before.Held {
			s.in.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: req.Kind, Name: req.Name})
		}
	case "acquire prolongs what another holds":
		if before.Held && !again {
			s.in.Renew(ctx, backend.RenewRequest{
				Kind: req.Kind, Name: req.Name, Owner: st.lastOwner(req.Name), Lease: req.Lease,
			})
		}
	case "re-entry compares versions only":
		if req.Reentry {
			req.Owner = s.impostor(req.Name, req.Owner)
		}
	case "the next hold has the lease of the last":
		st.with(func() {
			if end, ok := st.noted[req.Name]; ok && !before.Held {
				req.Lease = max(time.Until(end), time.Millisecond)
			}
		})
	case "counts wrap at 128":
		if before.Count == 127 {
			s.in.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: req.Kind, Name: req.Name})
		}
	case "acquire forgets the lease":
		req.Lease = 20 * time.Hour
	case "two inherit":
		st.inherit(req.Name, before, again)
	case "re-entry doesn't count":
		if again {
			s.in.Renew(ctx, backend.RenewRequest{
				Kind: req.Kind, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
			})
			return backend.AcquireResult{Acquired: true, Count: before.Count}, nil
		}
	case "re-entry in two steps":
		if again {
			time.Sleep(time.Millisecond)
			now, _ := s.in.Look(ctx, backend.LookRequest{
				Kind: req.Kind, Name: req.Name, Owner: req.Owner,
			})
			if now.Count != before.Count {
				return backend.AcquireResult{Acquired: true, Count: now.Count}, nil
			}
		}
	case "re-entry keeps the lease":
		if again {
			req.Lease = before.Remaining
		}
	case "re-entry only prolongs":
		req.Lease = max(req.Lease, before.Remaining)
	case "leases of re-entries don't last":
		if again {
			// They do until somebody else asks.
			defer s.endAt(req.Name, before.Remaining)
		}
	case "next owner inherits a hold":
		if last := st.lastOwner(req.Name); !before.Held && last != "" && last != req.Owner {
			s.in.Acquire(ctx, req)
		}
	case "counts outlive the lease":
		if !before.Held && st.lastOwner(req.Name) == req.Owner {
			s.in.Acquire(ctx, req)
		}
	case "shorter leases are only noted":
		st.note(req.Name, req.Lease, !before.Held || again)
		req.Lease = max(req.Lease, before.Remaining)
	case "one lease for all locks":
		st.mu.Lock()
		for name, owner := range st.owners {
			st.back.Renew(ctx, backend.RenewRequest{Name: name, Owner: owner, Lease: req.Lease})
		}
		st.mu.Unlock()
	case "context ends meanwhile: done, says Retry":
		time.Sleep(time.Millisecond)
		if ctx.Err() != nil {
			s.in.Acquire(context.Background(), req)
			return res, &backend.Error{Kind: backend.Retry, Err: ctx.Err()}
		}
	case "re-entry only for its own session":
		var other bool
		st.with(func() { other = st.opened[req.Name] != s })
		if again && other {
			return backend.AcquireResult{Remaining: before.Remaining}, nil
		}
	case "close fails while busy":
		time.Sleep(2 * time.Millisecond)
	case "locks share their steps":
		if st.busy.Load() > 60 {
			return res, &backend.Error{Kind: backend.Retry, Err: errors.New("busy")}
		}
		time.Sleep(time.Millisecond)
	}
	res, err = s.in.Acquire(ctx, req)
	if res.Acquired {
		st.with(func() {
			st.owners[req.Name] = req.Owner
			st.opened[req.Name] = s
			st.counts[req.Name] = st.counts[req.Name] || before.Count > 0
			st.taken[req.Name] = true
			if before.Count == 0 {
				st.version++
				st.versions[req.Name] = st.version
				s.began.Store(holdID{req.Name, req.Owner}, st.version)
			}
		})
		s.names.Store(req.Name, req.Owner)
	}
	res.Remaining = st.remaining(res.Remaining)
	switch st.fault {
	case "acquire is repeated":
		if res.Acquired {
			time.AfterFunc(req.Lease/20, func() { s.in.Acquire(context.Background(), req) })
		}
	case "re-entry has no Count":
		res.Count = 0
	}
	return res, err
}

// inherit lets everybody acquire a lock for some time after a lease of it has run out.
func (st *fakeStore) inherit(name string, before backend.LookResult, again bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case !before.Held && st.taken[name]:
		st.heired[name] = time.Now()
	case before.Held && !again && time.Since(st.heired[name]) < time.Second:
		st.back.ForceRelease(context.Background(), backend.ForceReleaseRequest{Name: name})
	}
}

// endAt frees a lock when a lease is over that should have been replaced.
func (s *fake) endAt(name string, rest time.Duration) {
	time.AfterFunc(rest, func() {
		s.st.back.ForceRelease(context.Background(), backend.ForceReleaseRequest{Name: name})
	})
}

func (s *fake) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	st := s.st
	if st.fault == "close ends Release" && s.closed.Load() {
		return res, &backend.Error{Kind: backend.Refused, Err: errors.New("closed")}
	}
	if carryOut, err := st.over(ctx); err != nil {
		if carryOut {
			s.Release(context.Background(), req)
		}
		return res, err
	}
	if err := st.check(req.Name); err != nil {
		return res, err
	}
	req.Name, req.Owner = st.name(req.Name, req.Owner), st.owner(req.Owner)
	req.Lease = st.lease(req.Lease)
	before, _ := st.back.Look(ctx, backend.LookRequest{
		Kind: req.Kind, Name: req.Name, Owner: req.Owner,
	})
	switch mine := before.Count > 0; st.fault {
	case "release forgets the owner":
		req.Owner = st.lastOwner(req.Name)
	case "release compares versions only":
		req.Owner = s.impostor(req.Name, req.Owner)
	case "release by another prolongs":
		if !mine {
			st.back.Renew(ctx, backend.RenewRequest{
				Kind: req.Kind, Name: req.Name, Owner: st.lastOwner(req.Name), Lease: req.Lease,
			})
		}
	case "release doesn't free":
		if before.Count == 1 {
			return backend.ReleaseResult{Outcome: backend.Freed}, nil
		}
	case "release frees all holds":
		if mine {
			st.back.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: req.Kind, Name: req.Name})
			return backend.ReleaseResult{Outcome: backend.Freed}, nil
		}
	case "the next hold has the lease of the last":
		st.note(req.Name, before.Remaining, mine)
	case "release keeps the lease":
		req.Lease = before.Remaining
	case "release of a free lock leaves one":
		if !before.Held {
			st.back.Acquire(ctx, backend.AcquireRequest{
				Kind: req.Kind, Name: req.Name, Owner: "nobody", Lease: req.Lease,
			})
			return res, nil
		}
	case "leases of releases don't last":
		if before.Count > 1 {
			s.endAt(req.Name, before.Remaining)
		}
	case "shorter leases are only noted":
		st.note(req.Name, req.Lease, before.Count > 1)
		req.Lease = max(req.Lease, before.Remaining)
	case "release of a re-entered lock doesn't wake":
		if mine {
			st.with(func() { mine = st.counts[req.Name] })
		}
		if before.Count == 1 && mine {
			st.with(func() { delete(st.counts, req.Name) })
			return s.releaseBadly(ctx, req)
		}
	case "release doesn't wake", "release wakes other sessions only", "release wakes too early":
		if before.Count == 1 {
			return s.releaseBadly(ctx, req)
		}
	}
	res, err = s.in.Release(ctx, req)
	if res.Outcome == backend.Freed {
		st.with(func() { delete(st.taken, req.Name) })
	}
	if res.Outcome == backend.Freed && st.fault == "counts outlive the lease" {
		st.with(func() { delete(st.owners, req.Name) })
	}
	if res.Outcome == backend.Freed && (req.AskWaiting || st.fault == "waiting is said unasked") {
		res.Counted, res.Waiting = true, s.waiting(req.Name)
	}
	return res, err
}

// waiting is how many waiters a release tells of.
func (s *fake) waiting(name string) int {
	all, own, elsewhere := 0, 0, 0
	for _, sub := range s.st.standing() {
		switch {
		case sub.name != name:
			elsewhere++
		case sub.s == s:
			own++
			fallthrough
		default:
			all++
		}
	}
	s.st.with(func() { s.st.waited = s.st.waited || all > own })
	others := all - own
	switch s.st.fault {
	case "waiting counts the session itself":
		others = all
	case "waiting counts one of the session's own":
		others = all - min(own, 1)
	case "waiting overlooks one":
		others = all - 1
	case "waiting looks at all names":
		others += elsewhere
	case "waiting never ends":
		s.st.with(func() {
			if s.st.waited {
				others++
			}
		})
	}
	return max(others, 0)
}

// releaseBadly releases the last hold, but wakes in its own way.
func (s *fake) releaseBadly(
	ctx context.Context, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	subs := s.st.standing()
	switch s.st.fault {
	case "release wakes too early":
		for _, sub := range subs {
			if sub.name == req.Name {
				sub.wake(0)
			}
		}
		time.Sleep(time.Millisecond)
	}
	for _, sub := range subs {
		if s.st.fault != "release wakes other sessions only" || sub.s == s {
			sub.muted.Store(true)
			defer sub.muted.Store(false)
		}
	}
	return s.in.Release(ctx, req)
}

func (s *fake) Renew(
	ctx context.Context, req backend.RenewRequest,
) (res backend.RenewResult, err error) {
	st := s.st
	if carryOut, err := st.over(ctx); err != nil {
		if carryOut {
			s.Renew(context.Background(), req)
		}
		return res, err
	}
	if err := st.check(req.Name); err != nil {
		return res, err
	}
	req.Name, req.Owner = st.name(req.Name, req.Owner), st.owner(req.Owner)
	req.Lease = st.lease(req.Lease)
	before, _ := s.in.Look(ctx, backend.LookRequest{
		Kind: req.Kind, Name: req.Name, Owner: req.Owner,
	})
	switch mine := before.Count > 0; st.fault {
	case "renew revives a free lock":
		if !before.Held {
			s.in.Acquire(ctx, backend.AcquireRequest{
				Kind: req.Kind, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
			})
		}
	case "renew counts":
		if mine {
			s.in.Acquire(ctx, backend.AcquireRequest{
				Kind: req.Kind, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
			})
		}
	case "renew compares versions only":
		req.Owner = s.impostor(req.Name, req.Owner)
	case "renew forgets the owner":
		req.Owner = st.lastOwner(req.Name)
	case "shorter leases are only noted":
		st.note(req.Name, req.Lease, mine)
		req.Lease = max(req.Lease, before.Remaining)
	case "renew only prolongs":
		req.Lease = max(req.Lease, before.Remaining)
	case "leases of renewals don't last":
		if mine {
			s.endAt(req.Name, before.Remaining)
		}
	}
	return s.in.Renew(ctx, req)
}

func (s *fake) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(
		i int, res backend.RenewResult, err error,
	),
) {
	st := s.st
	var others int
	st.with(func() { others = st.batches; st.batches++ })
	defer st.with(func() { st.batches-- })
	if st.fault == "batch doesn't wait for answers" {
		told := answer
		var all sync.WaitGroup
		answer = func(i int, res backend.RenewResult, err error) {
			all.Go(func() { told(i, res, err) })
		}
		defer func() {
			done := make(chan struct{})
			go func() { all.Wait(); close(done) }()
			select {
			case <-done:
			case <-ctx.Done():
			}
		}()
	}
	seen := make(map[string]int)
	for i, req := range reqs {
		switch st.fault {
		case "batch skips":
			if i == len(reqs)-1 {
				continue
			}
		case "batch answers twice":
			if i == 0 {
				answer(i, backend.RenewResult{}, nil)
			}
		case "batch has one kind":
			req.Kind = reqs[0].Kind
		case "batch has one number":
			req.Permits = max(reqs[0].Permits, 1)
		case "batch has one lease":
			req.Lease = reqs[0].Lease
		case "batch ends at 999":
			if i >= 999 {
				return
			}
		case "batch answers by name":
			if first, ok := seen[req.Name]; ok {
				answer(i, backend.RenewResult{Held: true}, nil)
				_ = first
				continue
			}
			seen[req.Name] = i
		case "batch has no duplicates":
			if _, ok := seen[req.Name+req.Owner]; ok {
				continue
			}
			seen[req.Name+req.Owner] = i
		case "batch fails beside another":
			time.Sleep(time.Microsecond)
			if others > 0 {
				answer(i, backend.RenewResult{}, nil)
				continue
			}
		case "batch doesn't answer when over":
			if ctx.Err() != nil {
				return
			}
		case "foreign: batch fails as a whole":
			if err := st.check(reqs[0].Name); err != nil {
				answer(i, backend.RenewResult{}, err)
				continue
			}
		}
		res, err := s.Renew(ctx, req)
		answer(i, res, err)
	}
}

func (s *fake) AcquireBatch(
	ctx context.Context, reqs []backend.AcquireRequest, answer func(
		i int, res backend.AcquireResult, err error,
	),
) {
	refused := false
	for i, req := range reqs {
		switch s.st.fault {
		case "acquires have one owner":
			req.Owner = reqs[0].Owner
		case "acquires have one lease":
			req.Lease = reqs[0].Lease
		case "acquires end at a refusal":
			if refused {
				answer(i, backend.AcquireResult{}, nil)
				continue
			}
		case "acquires skip":
			if i == 249 {
				return
			}
		case "acquires answer before they are over":
			if ctx.Err() != nil {
				answer(i, backend.AcquireResult{Acquired: true}, nil)
				continue
			}
		}
		res, err := s.Acquire(ctx, req)
		refused = refused || !res.Acquired
		answer(i, res, err)
	}
}

func (s *fake) ReleaseBatch(
	ctx context.Context, reqs []backend.ReleaseRequest, answer func(
		i int, res backend.ReleaseResult, err error,
	),
) {
	for i, req := range reqs {
		switch s.st.fault {
		case "releases have one owner":
			req.Owner = reqs[0].Owner
		case "releases answer twice":
			answer(i, backend.ReleaseResult{}, nil)
		case "releases wake for the first only":
			if i > 0 {
				answer(i, backend.ReleaseResult{Outcome: backend.Freed}, nil)
				continue
			}
		}
		res, err := s.Release(ctx, req)
		answer(i, res, err)
	}
}

func (s *fake) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (res backend.ForceReleaseResult, err error) {
	st := s.st
	if carryOut, err := st.over(ctx); err != nil {
		if carryOut {
			s.ForceRelease(context.Background(), req)
		}
		return res, err
	}
	if err := st.check(req.Name); err != nil {
		if st.fault == "foreign: force deletes" {
			st.with(func() { st.foreign[req.Name] = false })
		}
		return res, err
	}
	if st.fault == "names run into owners" {
		req.Name += st.lastOwner(req.Name)
	}
	req.Name = st.name(req.Name, "")
	switch st.fault {
	case "force gives back one hold":
		rel, err := s.in.Release(ctx, backend.ReleaseRequest{
			Kind: req.Kind, Name: req.Name, Owner: st.lastOwner(req.Name), Lease: time.Hour,
		})
		return backend.ForceReleaseResult{Released: rel.Outcome != backend.NotHeld}, err
	case "force doesn't wake":
		for _, sub := range st.standing() {
			sub.muted.Store(true)
			defer sub.muted.Store(false)
		}
	case "force always says released":
		s.in.ForceRelease(ctx, req)
		return backend.ForceReleaseResult{Released: true}, nil
	}
	return s.in.ForceRelease(ctx, req)
}

func (s *fake) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (res backend.PlacesResult, err error) {
	if _, err := s.st.over(ctx); err != nil {
		return res, err
	}
	if err := s.st.check(req.Name); err != nil {
		return res, err
	}
	return s.in.KeepPlaces(ctx, req)
}

func (s *fake) Look(
	ctx context.Context, req backend.LookRequest,
) (res backend.LookResult, err error) {
	st := s.st
	if _, err := st.over(ctx); err != nil {
		return res, err
	}
	if err := st.check(req.Name); err != nil {
		if st.fault == "foreign: look says free" && req.Owner == "" {
			return res, nil
		}
		return res, err
	}
	req.Name, req.Owner = st.name(req.Name, req.Owner), st.owner(req.Owner)
	switch st.fault {
	case "look prolongs":
		s.in.Renew(ctx, backend.RenewRequest{
			Kind: req.Kind, Name: req.Name, Owner: st.lastOwner(req.Name), Lease: 20 * time.Hour,
		})
	case "look tells anybody's count":
		req.Owner = st.lastOwner(req.Name)
	}
	res, err = s.in.Look(ctx, req)
	res.Remaining = st.remaining(res.Remaining)
	switch {
	case !res.Held:
	case st.fault == "look without an owner says free" && req.Owner == "",
		st.fault == "leases run out when looked at" && res.Remaining == 0:
		if req.Owner != "" {
			s.in.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: req.Kind, Name: req.Name})
		}
		return backend.LookResult{}, nil
	case st.fault == "shorter leases are only noted":
		st.with(func() { res.Remaining = max(time.Until(st.noted[req.Name]), 0) })
	}
	return res, err
}

func (s *fake) Close() error {
	st := s.st
	s.closed.Store(true)
	switch st.fault {
	case "close releases":
		s.names.Range(func(name, owner any) bool {
			s.in.ForceRelease(context.Background(),
				backend.ForceReleaseRequest{Name: name.(string)})
			return true
		})
	case "close keeps subscriptions":
		return nil
	case "close leaves a goroutine":
		go func() { <-st.done }()
	case "close fails while busy":
		if st.busy.Load() > 0 {
			return errors.New("busy")
		}
	}
	st.with(func() {
		for _, sub := range st.subs {
			if sub.s == s {
				sub.closed = true
			}
		}
	})
	return s.in.Close()
}

// fakeSub is a subscription to a fakeStore. Its mutable fields are guarded by st.mu.
type fakeSub struct {
	s      *fake
	name   string
	wake   func(backend.Wakeup)
	req    backend.SubscribeRequest // as made of membackend
	in     backend.Subscription
	closed bool
	muted  atomic.Bool
}

// cut lets the subscription fall silent though it isn't closed.
func (sub *fakeSub) cut() { sub.s.st.with(func() { sub.in.Close() }) }

type lateSub struct{}

func (lateSub) Close() {}

func (s *fake) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	st := s.st
	if st.fault == "ended context spoils the session" && s.spoilt.Load() {
		return nil, &backend.Error{Kind: backend.Retry, Err: errors.New("spoilt")}
	}
	if _, err := st.over(ctx); err != nil {
		s.spoilt.Store(true)
		return nil, err
	}
	sub := &fakeSub{s: s, name: req.Name, wake: req.Wake}
	req.Wake = func(w backend.Wakeup) {
		if !sub.muted.Load() &&
			(st.fault != "subscription ends with its context" || ctx.Err() == nil) {
			sub.wake(w)
		}
	}
	switch st.fault {
	case "subscriptions fold case":
		req.Name = strings.ToLower(req.Name)
	case "one subscription per session":
		for _, other := range st.standing() {
			if other.s == s && other.name != req.Name {
				other.cut()
			}
		}
	}
	if req.Kind == backend.Latch && st.fault == "latches open silently" {
		sub.muted.Store(true)
	}
	sub.req = req
	var err error
	if st.fault == "subscription stands late" {
		sub.in = lateSub{}
		time.AfterFunc(time.Millisecond, func() {
			st.with(func() {
				if !sub.closed {
					sub.in, _ = s.in.Subscribe(context.Background(), req)
				}
			})
		})
	} else if sub.in, err = s.in.Subscribe(ctx, req); err != nil {
		return nil, err
	}
	st.with(func() { st.subs = append(st.subs, sub) })
	return sub, nil
}

func (sub *fakeSub) Close() {
	st := sub.s.st
	switch st.fault {
	case "closed subscription goes on":
		return
	case "closing ends the next subscription":
		// This happens if the store keeps the names of subscriptions without their subscribers, and
		// is told a little later.
		time.AfterFunc(time.Millisecond, func() {
			for _, other := range st.standing() {
				if other.s == sub.s && other.name == sub.name {
					other.cut()
				}
			}
		})
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	sub.closed = true
	sub.in.Close()
}

// Package membackend keeps distributed locks of all kinds in the memory of this process. It is
// meant for tests, and for programs that run in one process now and in several later. It is also
// the reference that tests compare the other backends with.
//
//	client := dlock.New(membackend.New())
//	defer client.Close()
//
//	err := client.Locker("orders:42").Do(ctx, ship)
//
// Clients of one [Backend] exclude each other, like processes with a common store. Clients of
// different Backends are independent. A Backend forgets the limit of a semaphore once all its
// permits are free.
//
// Leases follow this process's clock. If the Backend is created inside a testing/synctest bubble,
// leases follow the bubble's virtual time.
package membackend

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Backend is a store for locks in this process. Use [New] to create one.
type Backend struct {
	// mu guards everything below, and the fields of all sessions. It is not held during callbacks.
	mu      sync.Mutex
	objects map[string]object                     // held locks and lines; some may have expired
	subs    map[string]map[*subscription]struct{} // by lock name
	token   uint64                                // the last fencing token
	latches latches

	// One timer serves all objects. It starts a sweep, which removes expired holds and places from
	// all objects. Each step also removes them from the object that it uses. A sweep works in
	// batches, and unlocks mu between the batches.
	timer *time.Timer
	// due is when timer fires, or zero if the timer isn't running. During a sweep, due is the
	// earliest expiry of anything that was created or extended since the sweep began.
	due      time.Time
	sweeping bool // a sweep is running
}

// kinds is the set of kinds of lock that the store supports.
var kinds = backend.KindsOf(backend.Fenced, backend.Read, backend.Write, backend.Fair,
	backend.Permits)

// New returns an empty store.
func New() *Backend {
	return &Backend{
		objects: make(map[string]object),
		subs:    make(map[string]map[*subscription]struct{}),
		latches: latches{
			counts: make(map[string]int64),
			subs:   make(map[string]map[*subscription]struct{}),
		},
	}
}

// Open implements [backend.Backend].
func (b *Backend) Open() backend.Session {
	return &session{b: b, subs: make(map[*subscription]struct{})}
}

// Limits implements [backend.Backend]. The store supports all kinds of lock, and leases of any
// length.
func (b *Backend) Limits() backend.Limits { return backend.Limits{Kinds: kinds, Keeps: true} }

// Wipe discards all locks and all places in line, like a server that restarts without its data. It
// doesn't notify the holders, whose clients notice the loss at the next renewal. Waiters try again
// at once, as after a reconnection. Fencing tokens keep growing, as with Redis.
func (b *Backend) Wipe() {
	var n news
	defer n.tell()
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.objects)
	for name := range b.subs {
		n.woken = append(n.woken, b.waiters(name)...)
	}
	clear(b.latches.counts)
	for _, subs := range b.latches.subs {
		n.woken = append(n.woken, slices.Collect(maps.Keys(subs))...)
	}
}

// object returns the named object, without its expired parts. It returns an error if the name is in
// use for an incompatible kind. The caller must hold b.mu.
func (b *Backend) object(name string, k backend.Kind, now time.Time) (object, error) {
	o := b.objects[name]
	o.prune(now)
	if o.conflicts(k) {
		return o, refused(fmt.Errorf("%v lock: %w", k, backend.ErrConflict))
	}
	return o, nil
}

// put stores an object under its name. The caller must hold b.mu.
func (b *Backend) put(name string, o object) {
	if o.empty() {
		delete(b.objects, name)
		return
	}
	b.objects[name] = o
}

// finish completes a step. If the lock is free, finish gives it to the first in line. It then
// stores the named object, and adds the wake-ups to n. If the step created or extended a part of
// the object, due is when that part expires. Otherwise due is zero. The caller must hold b.mu, and
// must unlock it before calling n.tell.
func (b *Backend) finish(name string, o *object, due, now time.Time, n *news) (granted bool) {
	first, granted := o.settle(now)
	if granted {
		n.grant(b.subs[name], first, now)
		if short := now.Add(grantLease); due.IsZero() || short.Before(due) {
			due = short
		}
	}
	b.put(name, *o)
	if !due.IsZero() && (b.due.IsZero() || due.Before(b.due)) {
		b.sweepAt(due, now)
	}
	return granted
}

// sweepAt schedules the next sweep for due. The caller must hold b.mu.
func (b *Backend) sweepAt(due, now time.Time) {
	b.due = due
	switch {
	case b.sweeping: // the sweep sets the timer when it is done
	case b.timer == nil:
		b.timer = time.AfterFunc(due.Sub(now), b.sweep)
	default:
		b.timer.Reset(due.Sub(now))
	}
}

// portion is the number of objects that a sweep looks at before it briefly unlocks the mutex. If
// all of them have expired, that takes about 0.3 ms.
const portion = 1000

// sweep removes expired holds and places. Without it, the holds and places of an owner that never
// comes back would stay forever. If a lock becomes free, sweep gives it to the first in line.
func (b *Backend) sweep() {
	var n news
	b.mu.Lock()
	if b.sweeping { // the timer was reset just as it fired
		b.mu.Unlock()
		return
	}
	b.sweeping = true
	// From here on, b.due is the earliest expiry of anything that is created or extended.
	b.due = time.Time{}
	now := time.Now()
	var next time.Time
	seen := 0
	// The loop may miss locks that are added or changed while mu is unlocked. The steps that add or
	// change them set b.due, so that the next sweep comes in time for these locks.
	for name, o := range b.objects {
		pruned := o.prune(now)
		first, granted := o.settle(now)
		if granted {
			n.grant(b.subs[name], first, now)
		}
		if pruned || granted || o.empty() { // a Look may have pruned it before
			b.put(name, o)
		}
		if first, ok := o.next(); ok && (next.IsZero() || first.Before(next)) {
			next = first
		}
		if seen++; seen%portion == 0 {
			b.mu.Unlock()
			n.tell()
			n = news{}
			runtime.Gosched()
			b.mu.Lock()
			now = time.Now()
		}
	}
	b.sweeping = false
	b.sweepAgain(next, now)
	b.mu.Unlock()
	n.tell()
}

// sweepAgain sets the timer for the next sweep, if any object is left. The parameter next is the
// earliest expiry among the objects that the sweep saw. The caller must hold b.mu.
func (b *Backend) sweepAgain(next, now time.Time) {
	if len(b.objects) == 0 {
		b.objects = make(map[string]object) // since a map never shrinks
		b.due = time.Time{}
		return
	}
	if next.IsZero() || !b.due.IsZero() && b.due.Before(next) {
		next = b.due
	}
	// A sweep takes about 50 ns per object. Thanks to this minimum pause, sweeps take at most 1 %
	// of the time, even if leases expire all the time.
	if earliest := now.Add(time.Duration(len(b.objects)) * 5 * time.Microsecond); next.Before(
		earliest) {
		next = earliest
	}
	b.sweepAt(next, now)
}

// waiters returns the subscriptions to a name. The caller must hold b.mu, and must unlock it before
// waking them.
func (b *Backend) waiters(name string) []*subscription {
	if len(b.subs[name]) == 0 {
		return nil
	}
	return slices.Collect(maps.Keys(b.subs[name]))
}

// watching returns those subscriptions to a name that only watch the lock, and don't wait for it.
// The caller must hold b.mu.
func (b *Backend) watching(name string) []*subscription {
	return slices.DeleteFunc(b.waiters(name), func(sub *subscription) bool { return !sub.watches })
}

// session is one client's access to the store. Its fields are guarded by b.mu.
type session struct {
	b      *Backend
	subs   map[*subscription]struct{}
	list   *listing // the names left for the next pages of the current list, or nil
	closed bool
}

var errClosed = errors.New("the session is closed")

// refused returns the error of a step that failed with err and changed nothing.
func refused(err error) error {
	return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("membackend: %w", err)}
}

// check returns an error if a step can't be carried out. The caller must hold s.b.mu.
func (s *session) check(ctx context.Context, kind backend.Kind) error {
	if s.closed {
		return refused(errClosed)
	}
	return checkRequest(ctx, kind)
}

// checkRequest is like check, but for steps that are allowed after Close.
func checkRequest(ctx context.Context, kind backend.Kind) error {
	if !kinds.Has(kind) {
		return backend.UnknownKind("membackend", kind)
	}
	if err := ctx.Err(); err != nil {
		return &backend.Error{Kind: backend.Retry, Err: err}
	}
	return nil
}

// A step is one step of a session about one lock. Between lock and end, b.mu is locked.
type step struct {
	b    *Backend
	name string
	now  time.Time
	o    object // without its expired parts; finish stores it
	news
}

// begin begins a step, unless it can't be carried out. Even then, the caller must call end.
func (st *step) begin(ctx context.Context, s *session, kind backend.Kind, name string) error {
	st.lock(s)
	if s.closed {
		return refused(errClosed)
	}
	return st.open(ctx, kind, name)
}

func (st *step) lock(s *session) {
	st.b = s.b
	st.b.mu.Lock()
}

// open looks up the object of a step.
func (st *step) open(ctx context.Context, kind backend.Kind, name string) (err error) {
	if err := checkRequest(ctx, kind); err != nil {
		return err
	}
	st.name, st.now = name, time.Now()
	st.o, err = st.b.object(name, kind, st.now)
	return err
}

// finish is [Backend.finish] for a step.
func (st *step) finish(due time.Time) (granted bool) {
	return st.b.finish(st.name, &st.o, due, st.now, &st.news)
}

// end ends a step, and then delivers its news.
func (st *step) end() {
	st.b.mu.Unlock()
	st.tell()
}

// Capabilities implements [backend.Capable].
func (s *session) Capabilities() backend.Capabilities {
	return backend.Capabilities{
		Notifier: s, BatchRenewer: s, Inspector: s, Lister: s, Liner: s, Latcher: s,
		Steps: backend.StepsNeverWait,
	}
}

func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	var st step
	defer st.end()
	if err := st.begin(ctx, s, req.Kind, req.Name); err != nil {
		return res, err
	}
	var wakes bool
	switch req.Kind {
	case backend.Read:
		res = st.o.acquireRead(req, st.now)
	case backend.Permits:
		res, wakes, err = st.o.acquirePermits(req, st.now)
	case backend.Fair:
		res = st.o.acquireFair(req, s, st.now)
	default:
		res = st.o.acquire(req, st.now)
	}
	if err != nil {
		return res, err
	}
	var due time.Time
	switch {
	case res.Acquired:
		if req.Kind == backend.Fenced {
			res.Token = s.b.number(&st.o.alone)
		}
		due = st.now.Add(req.Lease)
	case req.Place > 0: // when the note or the place expires
		due = st.now.Add(req.Place)
	}
	st.finish(due)
	if wakes {
		st.woken = s.b.waiters(req.Name)
	}
	return res, nil
}

// number returns the fencing token of a hold. If the hold has none, number assigns it the next one.
// The caller must hold b.mu.
func (b *Backend) number(h *hold) uint64 {
	if h.token == 0 {
		b.token++
		h.token = b.token
	}
	return h.token
}

// waiting returns the number of sessions to which the waiters belong, not counting s.
func (s *session) waiting(waiters []*subscription) int {
	others := make(map[*session]struct{})
	for _, sub := range waiters {
		if sub.s != s {
			others[sub.s] = struct{}{}
		}
	}
	return len(others)
}

func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	var st step
	defer st.end()
	st.lock(s)
	if err := st.open(ctx, req.Kind, req.Name); err != nil {
		return res, err
	}
	var wakes bool
	switch req.Kind {
	case backend.Read:
		res.Outcome, wakes = st.o.releaseRead(req.Owner)
	case backend.Permits:
		res.Outcome, wakes = st.o.releasePermits(req, st.now)
	default:
		res.Outcome, wakes = st.o.release(req, st.now)
	}
	var due time.Time
	switch res.Outcome {
	case backend.Left:
		due = st.now.Add(req.Lease)
	case backend.Kept:
		due = st.now.Add(req.Keep)
	}
	granted := st.finish(due)
	if res.Outcome == backend.Kept {
		st.woken = s.b.watching(req.Name)
	}
	if granted || !wakes {
		return res, nil
	}
	waiters := s.b.waiters(req.Name)
	if req.AskWaiting && res.Outcome == backend.Freed {
		res.Counted, res.Waiting = true, s.waiting(waiters)
	}
	st.woken = waiters
	return res, nil
}

func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (res backend.RenewResult, err error) {
	var st step
	defer st.end()
	if err := st.begin(ctx, s, req.Kind, req.Name); err != nil {
		return res, err
	}
	var wakes bool
	switch req.Kind {
	case backend.Read:
		res.Held = st.o.renewRead(req, st.now)
	case backend.Permits:
		res.Held, wakes = st.o.renewPermits(req, st.now)
	default:
		res.Held = st.o.renew(req, st.now)
	}
	var due time.Time
	if res.Held {
		due = st.now.Add(req.Lease)
	}
	st.finish(due)
	if wakes {
		st.woken = s.b.waiters(req.Name)
	}
	return res, nil
}

// RenewBatch implements [backend.BatchRenewer]. Without it, a client would use a goroutine for each
// hold.
func (s *session) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(
		i int, res backend.RenewResult, err error,
	),
) {
	for i, req := range reqs {
		res, err := s.Renew(ctx, req)
		answer(i, res, err)
	}
}

func (s *session) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (res backend.ForceReleaseResult, err error) {
	var st step
	defer st.end()
	if err := st.begin(ctx, s, req.Kind, req.Name); err != nil {
		return res, err
	}
	res.Released = st.o.force(req.Kind)
	if granted := st.finish(time.Time{}); res.Released && !granted {
		st.woken = s.b.waiters(req.Name)
	}
	return res, nil
}

// KeepPlaces implements [backend.Liner].
func (s *session) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (res backend.PlacesResult, err error) {
	var st step
	defer st.end()
	if err := st.begin(ctx, s, req.Kind, req.Name); err != nil {
		return res, err
	}
	due := st.now.Add(req.Place)
	st.o.keepPlaces(req.Owners, s, due)
	st.finish(due)
	if slices.ContainsFunc(req.Owners, st.o.alone.by) {
		res.Holder = st.o.alone.owner
	}
	res.Remaining = st.o.remaining(st.now)
	return res, nil
}

func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := s.check(ctx, req.Kind); err != nil {
		return backend.LookResult{}, err
	}
	now := time.Now()
	o, err := b.object(req.Name, req.Kind, now)
	if err != nil {
		return backend.LookResult{}, err
	}
	switch req.Kind {
	case backend.Read:
		return o.lookRead(req, now), nil
	case backend.Permits:
		return o.lookPermits(req, now)
	default:
		return o.look(req, now), nil
	}
}

func (s *session) Close() error {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.closed, s.list = true, nil
	for sub := range s.subs {
		sub.drop()
	}
	return nil
}

// subscription implements [backend.Subscription].
type subscription struct {
	s       *session
	all     map[string]map[*subscription]struct{} // the table that contains the subscription
	name    string
	watches bool // the subscriber doesn't wait for the lock
	wake    func(backend.Wakeup)
	granted func(backend.Grant) // nil except for Fair
}

// Subscribe implements [backend.Notifier].
func (s *session) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	all, kind := b.subs, req.Kind
	if kind == backend.Latch {
		all, kind = b.latches.subs, backend.Exclusive
	}
	if err := s.check(ctx, kind); err != nil {
		return nil, err
	}
	sub := &subscription{
		s: s, all: all, name: req.Name, watches: req.Watches, wake: req.Wake, granted: req.Granted,
	}
	if all[req.Name] == nil {
		all[req.Name] = make(map[*subscription]struct{})
	}
	all[req.Name][sub] = struct{}{}
	s.subs[sub] = struct{}{}
	return sub, nil
}

func (sub *subscription) Close() {
	sub.s.b.mu.Lock()
	defer sub.s.b.mu.Unlock()
	sub.drop()
}

// drop removes the subscription from the tables. The caller must hold b.mu.
func (sub *subscription) drop() {
	delete(sub.s.subs, sub)
	delete(sub.all[sub.name], sub)
	if len(sub.all[sub.name]) == 0 {
		delete(sub.all, sub.name)
	}
}

// news holds the wake-ups of a step, and the locks that it gave to waiters. They are reported once
// the mutex is unlocked. The zero value is empty.
type news struct {
	woken  []*subscription
	grants []func()
}

// grant adds the news that the store gave a lock to the owner of a place. The news goes to the
// subscriptions of that owner's session.
func (n *news) grant(subs map[*subscription]struct{}, to place, now time.Time) {
	g := backend.Grant{Owner: to.owner, Since: now, Lease: grantLease + to.longer}
	for sub := range subs {
		if sub.s == to.s && sub.granted != nil {
			n.grants = append(n.grants, func() { sub.granted(g) })
		}
	}
}

// tell delivers the news. The caller must not hold b.mu.
func (n *news) tell() {
	for _, sub := range n.woken {
		sub.wake(0)
	}
	for _, granted := range n.grants {
		granted()
	}
}

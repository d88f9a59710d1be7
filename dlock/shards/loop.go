package shards

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// Times of the loop.
const (
	quiet     = 300 * time.Millisecond // for so long the set of seats must stand, before it counts
	loudest   = 4 * quiet              // but it isn't waited for any longer
	jitter    = 50 * time.Millisecond  // between a bell and the look
	lookAgain = 200 * time.Millisecond // after one that failed
	lineUp    = 2*quiet + jitter       // until others wait for what a member that leaves still has
)

// Run has this process be a member until ctx ends. fn runs each shard that it has, in a goroutine
// of its own. The context of fn ends when the shard is to go elsewhere (with cause [ErrMoved]),
// with ctx, when the shard is lost (a [*dlock.Loss]), and when the client is closed
// ([dlock.ErrClosed]). Its Err looks at the clock. It has the values of ctx, but none of its owners
// and holds: each run is an owner of its own, and re-enters its shard's lock with its context. A
// re-entry that fn hasn't given back ends when fn has returned.
//
// Let fn return soon once its context has ended: the shard stands still until then. Finish begun
// work with [Shard.Finishing]. If fn returns before, whatever it returns, this member keeps the
// shard and calls fn again after a second, with another token.
//
// When ctx ends, Run tells the others, has every run end, gives each shard back as soon as its run
// has returned, and returns a [*dlock.Error] with the error and cause of ctx. Wait for that: a
// process or a client that ends before leaves its shards for a lease. While the store can't be
// reached, Run waits and logs that. It returns an error at once if an option, the name or the list
// is invalid; [dlock.ErrConflict] if a name of the set is that of another kind of lock; an error
// that wraps [errors.ErrUnsupported] if the store has no fenced or read-write locks, or can't say
// who has them; [dlock.ErrClosed]; and if another Run of this Set goes on.
//
// If fn panics, all other runs are told to return, and Run panics once they have, or after their
// grace. An fn that ends its goroutine has returned.
func (s *Set) Run(ctx context.Context, fn func(ctx context.Context, shard *Shard) error) error {
	if ctx == nil {
		panic("shards: the context is nil")
	}
	if err := s.begin(fn); err != nil {
		return s.wrap(err)
	}
	defer s.over()
	m := s.newMembership(ctx, fn)
	err := m.run()
	m.panics.again()
	return s.wrap(err)
}

func (s *Set) wrap(err error) error {
	if err == nil {
		return nil
	}
	return &dlock.Error{Op: "run", Name: s.lockName(), Err: err}
}

var (
	errRuns       = errors.New("another Run of this Set goes on")
	errNoFunction = errors.New("the function is nil")
)

func (s *Set) begin(fn func(context.Context, *Shard) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case fn == nil:
		return errNoFunction
	case s.running:
		return errRuns
	}
	if err := s.check(); err != nil {
		return err
	}
	s.running = true
	return nil
}

func (s *Set) over() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.seen, s.owners = false, nil, nil
}

// A membership is one Run. All but what it says is used by its loop alone.
type membership struct {
	set    *Set
	ctx    context.Context
	fn     func(context.Context, *Shard) error
	lease  time.Duration
	panics *panicking

	lock, bell *dlock.Locker
	released   <-chan struct{} // the bell
	presence   *dlock.Hold
	seating    seating
	said       bool // heard is what all others see
	heard      note
	frozen     bool // somebody writes the lock that members read

	view    *view          // the last that was whole
	seats   []int          // that count
	pending []int          // seen, and don't count yet
	changed time.Time      // when they last changed
	first   time.Time      // when the first of the changes that don't count was seen
	ghosts  map[int]ghost  // seats of members that have vanished
	owners  memo           // of all shards
	keepers memo           // and if the ghosts had their seats
	last    Change         // that was told
	woken   chan struct{}  // a run is over
	ended   sync.WaitGroup // all runs
	starts  chan struct{}
	reports time.Time // when something was logged that goes on
}

// A ghost is a member that has vanished without having said that it leaves: it may only have been
// overlooked, after the store has lost its data for example. For a while nothing that it would
// leave alone is given up.
type ghost struct {
	member *member
	until  time.Time
}

func (s *Set) newMembership(ctx context.Context, fn func(context.Context, *Shard) error) *membership {
	lease := s.client.Lease()
	settle := s.settle
	if settle == 0 {
		settle = lease * 2 / 3
	}
	m := &membership{
		set: s, ctx: ctx, fn: fn, lease: lease, panics: newPanicking(),
		lock:   s.client.RWLocker(s.lockName()).Reader(),
		bell:   s.client.Locker(s.lockName() + "!"),
		ghosts: map[int]ghost{}, woken: make(chan struct{}, 1), starts: make(chan struct{}, s.starts),
	}
	m.seating = seating{self: note{
		run: crand.Text()[:16], most: s.most, address: s.address,
	}, settle: settle}
	return m
}

// run is Run.
func (m *membership) run() error {
	if err := m.supported(); err != nil {
		return err
	}
	listening, stop := context.WithCancel(context.Background())
	defer stop()
	m.released = m.bell.Released(listening)
	why := m.loop()
	m.leave(why)
	if m.last != (Change{}) {
		m.tell(Change{Set: m.set.name})
	}
	return why
}

// supported says whether the store has what it takes, and waits until it answers.
func (m *membership) supported() error {
	pause := firstPause
	for {
		ctx, cancel := context.WithTimeout(m.ctx, m.lease/3)
		_, err := m.set.client.Inspect(ctx, m.set.lockName())
		if err == nil {
			_, err = m.set.client.FencedLocker(m.set.shardLock("")).IsLocked(ctx)
		}
		if err == nil {
			_, err = m.lock.IsLocked(ctx)
		}
		cancel()
		if over := m.over(); err == nil || over != nil || hopeless(err) {
			return cmp.Or(over, err)
		}
		m.report("the store can't be reached yet", err)
		m.sleep(pause)
		pause = min(2*pause, longestPause)
	}
}

// hopeless says whether trying again can't help.
func hopeless(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, dlock.ErrConflict) ||
		errors.Is(err, dlock.ErrClosed)
}

// over returns why the loop is to end, or nil.
func (m *membership) over() error {
	select {
	case <-m.set.client.Closed():
		return dlock.ErrClosed
	case <-m.panics.done:
		return errPanicked
	default:
	}
	if err := m.ctx.Err(); err != nil {
		return &endError{err, context.Cause(m.ctx)}
	}
	return nil
}

var errPanicked = errors.New("a run has panicked")

// An endError is the error of a context and its cause.
type endError struct{ err, cause error }

func (e *endError) Error() string   { return e.cause.Error() }
func (e *endError) Unwrap() []error { return []error{e.err, e.cause} }

// sleep waits, and no longer than the loop is to go on.
func (m *membership) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-m.ctx.Done():
	case <-m.set.client.Closed():
	case <-m.panics.done:
	}
}

// report logs what goes on for long, once in a third of a lease.
func (m *membership) report(what string, err error) {
	if now := time.Now(); now.Sub(m.reports) >= m.lease/3 {
		m.reports = now
		m.set.log.Warn("shards: "+what, "set", m.set.name, "err", err)
	}
}

// loop looks, and acts on what it sees, until it is over.
func (m *membership) loop() error {
	for {
		next, err := m.round()
		if over := m.over(); over != nil || err != nil {
			return cmp.Or(over, err)
		}
		m.rest(next)
	}
}

// rest waits for a reason to look, and no longer than d.
func (m *membership) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-m.woken:
			m.apply()
			continue
		case <-timer.C:
		case <-m.released:
			m.sleep(rand.N(jitter)) // else all would look at once
		case <-m.set.changed:
		case <-m.ctx.Done():
		case <-m.set.client.Closed():
		case <-m.panics.done:
		}
		return
	}
}

// round looks once, and returns when to look again. An error is one that trying again can't mend.
func (m *membership) round() (next time.Duration, err error) {
	v, err := m.look()
	switch {
	case err != nil && hopeless(err):
		return 0, err
	case err != nil:
		if m.over() == nil {
			m.report("the members can't be seen", err)
		}
		return lookAgain, nil
	case v == nil:
		return m.lease / 3, nil
	}
	now := time.Now()
	m.haunt(now, v)
	m.view = v
	m.set.mu.Lock()
	m.seating.self.weight = m.set.weight
	m.seating.self.list = m.set.list
	m.set.mu.Unlock()

	next = m.lease / 3
	if v.next > 0 {
		next = min(next, v.next+time.Millisecond)
	}
	changed, wait := m.seating.sit(now, v)
	if wait > 0 {
		next = min(next, wait+time.Millisecond)
	}
	self := &m.seating.self
	if changed || !m.said || self.list != m.heard.list || self.weight != m.heard.weight {
		if err := m.say(m.ctx); hopeless(err) {
			return 0, err
		} else if err != nil {
			return lookAgain, nil
		}
		return 0, nil
	}
	if wait := m.count(now, v.seats()); wait > 0 {
		next = min(next, wait+time.Millisecond)
	}
	m.apply()
	return next, nil
}

// look returns the members. It returns nil if there are more than can be seen: what was seen before
// goes on counting then.
func (m *membership) look() (*view, error) {
	ctx, cancel := context.WithTimeout(m.ctx, m.lease/3)
	defer cancel()
	info, err := m.set.client.Inspect(ctx, m.set.lockName())
	if err != nil {
		return nil, err
	}
	if info.More > 0 {
		m.report("there are more members than can be seen", nil)
		return nil, nil
	}
	return newView(info.Holders), nil
}

// haunt notes who has vanished, and forgets those who are back, replaced or gone for long.
func (m *membership) haunt(now time.Time, v *view) {
	if m.view != nil {
		for seat, before := range m.view.taken {
			if v.find(before.run) == nil {
				m.ghosts[seat] = ghost{before, now.Add(m.lease / 3)}
			}
		}
	}
	maps.DeleteFunc(m.ghosts, func(seat int, g ghost) bool {
		return v.taken[seat] != nil || v.find(g.member.run) != nil || !now.Before(g.until)
	})
}

// say tells all others what this member is: it acquires a read of its own with a new note, gives
// the one before back, and rings the bell. It waits no longer than until end.
func (m *membership) say(end context.Context) error {
	ctx, cancel := bounded(end, m.lease/3)
	defer cancel()
	m.seating.self.version++
	self := m.seating.self
	h, err := m.lock.Acquire(ctx, dlock.HolderNote(self.encode()), dlock.RenewedLease(m.lease*2/3))
	m.freeze(errors.Is(err, dlock.ErrHeld))
	if err != nil {
		m.said = false
		m.report("the others can't be told what this member is", err)
		return err
	}
	m.set.once.Do(func() { close(m.set.joined) })
	if m.presence != nil {
		m.giveBack(ctx)
	}
	m.presence, m.said, m.heard = h, true, self
	if ok, err := m.bell.TryLock(ctx); ok && err == nil { // else somebody else rings it now
		m.bell.UnlockContext(ctx)
	}
	return nil
}

// giveBack gives the presence back. If that fails it ends with its lease, or what it says is
// replaced by what this member says next.
func (m *membership) giveBack(ctx context.Context) {
	if err := m.presence.Release(ctx); err != nil && !errors.Is(err, dlock.ErrLost) {
		m.report("what this member was can't be taken back", err)
	}
}

// freeze notes whether somebody writes, or waits to write, the lock that members read.
func (m *membership) freeze(frozen bool) {
	if frozen && !m.frozen {
		m.set.log.Error("shards: somebody holds the members' lock for writing: none can change",
			"set", m.set.name, "lock", m.set.lockName())
	}
	m.frozen = frozen
}

// count has the seats that were seen count, once they have stood for a while, and returns how long
// that takes yet. Those that a change adds or takes away are often followed by more.
func (m *membership) count(now time.Time, seats []int) (wait time.Duration) {
	if !slices.Equal(seats, m.pending) {
		if slices.Equal(m.pending, m.seats) {
			m.first = now
		}
		m.pending, m.changed = seats, now
	}
	if slices.Equal(m.pending, m.seats) {
		return 0
	}
	wait = min(quiet-now.Sub(m.changed), loudest-now.Sub(m.first))
	if wait <= 0 {
		m.seats = m.pending
	}
	return wait
}

// apply starts the runs of what this member wants, and ends those of what it doesn't.
func (m *membership) apply() {
	if m.view == nil {
		return
	}
	self := m.seating.self
	m.set.mu.Lock()
	names := m.set.names
	m.set.mu.Unlock()
	owners := m.owners.of(names, self.list, m.seats, m.view.taken)
	keepers := owners
	if len(m.ghosts) > 0 {
		seats, taken := slices.Clone(m.seats), maps.Clone(m.view.taken)
		for seat, g := range m.ghosts {
			seats, taken[seat] = append(seats, seat), g.member
		}
		slices.Sort(seats)
		keepers = m.keepers.of(names, self.list, slices.Compact(seats), taken)
	}
	mine := func(owners map[string]*member, shard string) bool {
		return owners[shard] != nil && owners[shard].run == self.run
	}
	c := Change{Set: m.set.name, Members: len(m.view.members), Seats: len(m.seats), Frozen: m.frozen}
	lists := map[list]bool{}
	for _, has := range m.view.members {
		lists[has.list] = true
	}
	c.Lists = len(lists)
	all := len(m.seats) > 0 // somebody sits on each; else what is free is so for a moment only
	for _, seat := range m.seats {
		all = all && m.view.taken[seat] != nil
	}

	m.set.mu.Lock()
	m.set.seen, m.set.owners = m.view.members, owners
	for shard, r := range m.set.runs {
		if !mine(owners, shard) && !mine(keepers, shard) {
			r.drop(ErrMoved)
		}
	}
	for _, shard := range names {
		if mine(owners, shard) {
			c.Mine++
			m.startLocked(shard)
		} else if all && owners[shard] == nil {
			c.Free++
		}
	}
	m.set.mu.Unlock()
	m.tell(c)
}

// tell tells of a change.
func (m *membership) tell(c Change) {
	if c == m.last {
		return
	}
	if c.Free > 0 && m.last.Free == 0 {
		m.set.log.Error("shards: no member has room for some shards", "set", m.set.name, "free", c.Free)
	}
	m.last = c
	if t := m.set.trace.Change; t != nil {
		t(c)
	}
}

// startLocked starts what this member does about a shard, if it doesn't yet.
func (m *membership) startLocked(shard string) {
	if m.set.runs[shard] != nil {
		return // it may be ending; then it is started again once it has
	}
	r := &run{
		set: m.set, shard: shard, values: m.ctx, fn: m.fn, starts: m.starts, since: time.Now(),
		lock:     m.set.client.FencedLocker(m.set.shardLock(shard)),
		info:     ShardInfo{Name: shard, State: Waiting, Since: time.Now()},
		panicked: m.panics.add,
	}
	r.wanted, r.drop = context.WithCancelCause(context.Background())
	m.set.runs[shard] = r
	m.ended.Go(func() {
		r.loop()
		r.drop(nil)
		m.set.mu.Lock()
		delete(m.set.runs, shard)
		m.set.mu.Unlock()
		select {
		case m.woken <- struct{}{}: // it may be wanted again
		default:
		}
	})
}

// leave ends all runs and then this membership. The others are told first, and given the time to
// stand in line for what is to be given back, so that nothing stands still.
func (m *membership) leave(why error) {
	if m.presence != nil && !errors.Is(why, dlock.ErrClosed) {
		m.seating.self.state = leaving
		soon, cancel := context.WithTimeout(context.Background(), leavePatience)
		err := m.say(soon)
		cancel()
		if err == nil && m.view != nil && len(m.view.members) > 1 && why != errPanicked {
			time.Sleep(lineUp)
		}
	}
	cause := why
	if end, ok := errors.AsType[*endError](why); ok {
		cause = end.cause
	}
	m.set.mu.Lock()
	for _, r := range m.set.runs {
		r.drop(cause)
	}
	m.set.mu.Unlock()
	over := make(chan struct{})
	go func() {
		m.ended.Wait()
		close(over)
	}()
	if why == errPanicked {
		grace := time.NewTimer(m.set.grace)
		defer grace.Stop()
		select {
		case <-over:
		case <-grace.C: // a panic mustn't wait for a run that never returns
		}
	} else {
		<-over
	}
	if m.presence != nil {
		soon, cancel := context.WithTimeout(context.Background(), leavePatience)
		defer cancel()
		m.giveBack(soon)
	}
}

// leavePatience bounds what a member says as it leaves: a process that is to end has little time.
const leavePatience = 2 * time.Second

// bounded returns a context that ends with end, and after d. It has no values: an owner in them
// would have members of one process take each other's locks for their own.
func bounded(end context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	stop := context.AfterFunc(end, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

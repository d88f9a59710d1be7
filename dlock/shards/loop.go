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
	quiet     = 300 * time.Millisecond // how long seats must be unchanged before they take effect
	loudest   = 4 * quiet              // the longest wait for seats that keep changing
	jitter    = 50 * time.Millisecond  // the longest random wait between the bell and the next look
	lookAgain = 200 * time.Millisecond // the pause after a failed look
	lineUp    = 2*quiet + jitter       // how long others can queue for a leaving member's shards
)

// Run makes this process a member until ctx ends. For each shard that the member owns, it calls fn
// in a separate goroutine. The context of fn ends when the shard moves to another member (with
// cause [ErrMoved]), when ctx ends, when the shard is lost (a [*dlock.Loss]), and when the client
// is closed ([dlock.ErrClosed]). The Err method of that context also checks the clock, since timers
// can be late. The context carries the values of ctx, except for its owners and holds.
// Each run is a separate owner, and can re-enter its shard's lock with its context. Re-entries that
// fn doesn't unlock are released when fn has returned.
//
// fn should return soon once its context has ended, since no other member works on the shard until
// fn has returned. Use [Shard.Finishing] to finish work already begun. If fn returns before its
// context has ended, with or without an error, this member keeps the shard. After a second it calls
// fn again, with a new token.
//
// When ctx ends, Run tells the other members, ends all runs, and releases each shard as soon as its
// run has returned. Then it returns a [*dlock.Error] with the error and cause of ctx. Wait until it
// has returned. If the process or the client ends earlier, its shards stay idle until their leases
// end. While the store can't be reached, Run waits and logs that. It returns an error at once if an
// option, the name or the list is invalid, or if another Run of this Set is under way. The error
// is [dlock.ErrConflict] if a name of the set belongs to another kind of lock, and
// [dlock.ErrClosed] if the client is closed. It wraps [errors.ErrUnsupported] if the store has no
// fenced or read-write locks, or can't list their holders.
//
// If fn panics, all other runs are told to return. Run panics when they have returned, or when
// their grace period is over. If fn ends its goroutine with [runtime.Goexit], that counts as a
// return.
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

// A membership is one call of Run. Only the loop of Run uses its fields, unless their comments say
// otherwise.
type membership struct {
	set    *Set
	ctx    context.Context
	fn     func(context.Context, *Shard) error
	lease  time.Duration
	panics *panicking

	lock, bell *dlock.Locker
	released   <-chan struct{} // gets a value when the bell is released
	presence   *dlock.Hold
	seating    seating
	said       bool // whether all other members can see the note in heard
	heard      note // this member's note as it was last published
	frozen     bool // whether a writer holds the lock that members hold for reading

	view    *view          // the latest complete view
	seats   []int          // the seats in effect
	pending []int          // the seats seen last, which take effect when they stop changing
	changed time.Time      // when pending last changed
	first   time.Time      // when pending first differed from seats
	ghosts  map[int]ghost  // seats of members that have vanished
	owners  memo           // the owners of all shards
	keepers memo           // the owners if the ghosts still had their seats
	last    Change         // the last change that was reported
	woken   chan struct{}  // gets a value when a run has ended
	ended   sync.WaitGroup // all runs
	starts  chan struct{}
	reports time.Time // when a lasting problem was last logged
}

// A ghost is a member that has vanished without notice. It might still be running, for example if
// the store has lost its data. So for a while, no run ends because that member is missing.
type ghost struct {
	member *member
	until  time.Time
}

func (s *Set) newMembership(
	ctx context.Context, fn func(context.Context, *Shard) error,
) *membership {
	lease := s.client.Lease()
	settle := s.settle
	if settle == 0 {
		settle = lease * 2 / 3
	}
	m := &membership{
		set: s, ctx: ctx, fn: fn, lease: lease, panics: newPanicking(),
		lock:   s.client.RWLocker(s.lockName()).Reader(),
		bell:   s.client.Locker(s.lockName() + "!"),
		ghosts: map[int]ghost{}, woken: make(chan struct{}, 1),
		starts: make(chan struct{}, s.starts),
	}
	m.seating = seating{self: note{
		run: crand.Text()[:16], most: s.most, address: s.address,
	}, settle: settle}
	return m
}

// run carries out Run.
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

// supported waits until the store answers, and returns an error if the store lacks a feature that a
// Set needs.
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

// hopeless reports whether another attempt can't help.
func hopeless(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, dlock.ErrConflict) ||
		errors.Is(err, dlock.ErrClosed)
}

// over returns the reason why the loop must end, or nil.
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

// An endError combines the error of a context with its cause.
type endError struct{ err, cause error }

func (e *endError) Error() string   { return e.cause.Error() }
func (e *endError) Unwrap() []error { return []error{e.err, e.cause} }

// sleep waits for d, or until the loop must end.
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

// report logs a lasting problem, at most once per third of a lease.
func (m *membership) report(what string, err error) {
	if now := time.Now(); now.Sub(m.reports) >= m.lease/3 {
		m.reports = now
		m.set.log.Warn("shards: "+what, "set", m.set.name, "err", err)
	}
}

// loop repeats rounds until the membership ends.
func (m *membership) loop() error {
	for {
		next, err := m.round()
		if over := m.over(); over != nil || err != nil {
			return cmp.Or(over, err)
		}
		m.rest(next)
	}
}

// rest waits until it is time to look at the members again: for d, or less if there is a signal to
// look earlier.
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
			m.sleep(rand.N(jitter)) // otherwise all members would look at once
		case <-m.set.changed:
		case <-m.ctx.Done():
		case <-m.set.client.Closed():
		case <-m.panics.done:
		}
		return
	}
}

// round looks at the members once, acts on what it sees, and returns how long to wait before the
// next round. It returns an error only if trying again can't help.
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

// look asks the store for the members, and returns a new view. If there are more members than the
// store can list, look returns nil, and the last view stays in force.
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

// haunt updates the ghosts. It adds members that have vanished since the last view. It removes
// ghosts that are back, have been gone for some time, or have lost their seats to other members.
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

// say publishes this member's note. It acquires a read lock with the new note, releases the read
// lock with the previous note, and rings the bell, which makes the others look. It gives up when
// the given context ends.
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
	if ok, err := m.bell.TryLock(ctx); ok && err == nil { // otherwise another member rings it now
		m.bell.UnlockContext(ctx)
	}
	return nil
}

// giveBack releases m.presence, which is the hold with this member's previous note. If that fails,
// the hold ends with its lease. Until then, other members see both notes, and use the newer one.
func (m *membership) giveBack(ctx context.Context) {
	if err := m.presence.Release(ctx); err != nil && !errors.Is(err, dlock.ErrLost) {
		m.report("what this member was can't be taken back", err)
	}
}

// freeze records whether a writer holds, or waits for, the lock that members hold for reading.
func (m *membership) freeze(frozen bool) {
	if frozen && !m.frozen {
		m.set.log.Error("shards: somebody holds the members' lock for writing: none can change",
			"set", m.set.name, "lock", m.set.lockName())
	}
	m.frozen = frozen
}

// count puts new seats into effect once they have been unchanged for a while. It waits because one
// change of seats is often followed by others, and each could move shards. It returns how long to
// wait until the seats take effect.
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

// apply starts runs for the shards of this member, and ends runs of other shards.
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
	c := Change{Set: m.set.name, Members: len(m.view.members), Seats: len(m.seats),
		Frozen: m.frozen}
	lists := map[list]bool{}
	for _, has := range m.view.members {
		lists[has.list] = true
	}
	c.Lists = len(lists)
	all := len(m.seats) > 0 // all seats are taken; if not, some shards have no owner for a moment
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

// tell reports a change to the log and the trace.
func (m *membership) tell(c Change) {
	if c == m.last {
		return
	}
	if c.Free > 0 && m.last.Free == 0 {
		m.set.log.Error("shards: no member has room for some shards", "set", m.set.name, "free",
			c.Free)
	}
	m.last = c
	if t := m.set.trace.Change; t != nil {
		t(c)
	}
}

// startLocked starts a run of the given shard, unless the shard already has one.
func (m *membership) startLocked(shard string) {
	if m.set.runs[shard] != nil {
		return // if that run is ending, apply starts another one afterwards
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
		case m.woken <- struct{}{}: // the shard may be wanted again
		default:
		}
	})
}

// leave ends all runs and then this membership. It first tells the other members and gives them
// time to queue for its shards, so that the shards don't stay idle.
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

// leavePatience is how long a leaving member tries to tell the others. A process that is about to
// end has little time.
const leavePatience = 2 * time.Second

// bounded returns a context that ends together with the given one, or after d. It carries no
// values. If they included an owner, members in one process could re-enter each other's locks.
func bounded(end context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	stop := context.AfterFunc(end, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

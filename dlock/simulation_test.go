package dlock

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/protocol"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/membackend"
)

var simulations = flag.Int("simulations", 0,
	"how many random histories of each sort are run; 0: as many as usual")

// histories returns how many random histories of each sort are run.
func histories() int {
	if *simulations > 0 {
		return *simulations
	}
	return depth.Of(4, 8, 100)
}

// A moody store is one in memory that answers late, or not at all, and carries out requests without
// an answer later, or never. Messages get lost.
type moody struct {
	backend.Backend
	well atomic.Bool  // no faults any more
	when atomic.Int64 // since then
	cut  atomic.Int64 // until when subscriptions are cut

	mu     sync.Mutex
	random *rand.Rand
}

func (b *moody) Open() backend.Session { return moodySession{b.Backend.Open(), b} }

// recover ends the faults.
func (b *moody) recover() {
	b.when.Store(time.Now().UnixNano())
	b.well.Store(true)
}

// calm says whether nothing is under way any more that has to do with faults.
func (b *moody) calm(now time.Time) bool {
	return b.well.Load() && now.UnixNano()-b.when.Load() > int64(10*time.Second)
}

// roll returns a number below n.
func (b *moody) roll(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.random.IntN(n)
}

// cutFor returns for how long subscriptions are cut still.
func (b *moody) cutFor() time.Duration {
	return time.Duration(b.cut.Load() - time.Now().UnixNano())
}

func (b *moody) moment(most time.Duration) { time.Sleep(time.Duration(b.roll(int(most)) + 1)) }

var errMood = errors.New("no answer")

// mood carries a step out.
func mood[Res any](b *moody, do func() (Res, error)) (res Res, err error) {
	b.moment(2 * time.Millisecond)
	if b.well.Load() {
		return do()
	}
	switch b.roll(24) {
	case 0: // carried out, and the answer is lost
		do()
		b.moment(time.Second)
		return res, &backend.Error{Kind: backend.Unknown, Err: errMood}
	case 1, 6: // carried out later
		late := []time.Duration{10 * time.Millisecond, 200 * time.Millisecond,
			5 * time.Second}[b.roll(3)]
		go func() {
			b.moment(late)
			do()
		}()
		b.moment(late / 10)
		return res, &backend.Error{Kind: backend.Unknown, Err: errMood}
	case 2: // never carried out
		return res, &backend.Error{Kind: backend.Unknown, Err: errMood}
	case 3:
		return res, &backend.Error{Kind: backend.Retry, Err: errMood}
	case 4: // a late answer
		res, err = do()
		b.moment(2 * time.Second)
		return res, err
	case 5: // a late request
		b.moment(2 * time.Second)
		return do()
	default:
		return do()
	}
}

type moodySession struct {
	backend.Session
	b *moody
}

func (s moodySession) Acquire(
	_ context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return mood(s.b, func() (backend.AcquireResult, error) {
		return s.Session.Acquire(context.Background(), req)
	})
}

func (s moodySession) Release(
	_ context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return mood(s.b, func() (backend.ReleaseResult, error) {
		return s.Session.Release(context.Background(), req)
	})
}

func (s moodySession) Renew(
	_ context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return mood(s.b, func() (backend.RenewResult, error) {
		return s.Session.Renew(context.Background(), req)
	})
}

func (s moodySession) Look(_ context.Context, req backend.LookRequest) (backend.LookResult, error) {
	return mood(s.b, func() (backend.LookResult, error) {
		return s.Session.Look(context.Background(), req)
	})
}

func (s moodySession) KeepPlaces(
	_ context.Context, req backend.PlacesRequest,
) (backend.PlacesResult, error) {
	return mood(s.b, func() (backend.PlacesResult, error) {
		return s.Session.(backend.Liner).KeepPlaces(context.Background(), req)
	})
}

func (s moodySession) ForceRelease(
	_ context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	return mood(s.b, func() (backend.ForceReleaseResult, error) {
		return s.Session.ForceRelease(context.Background(), req)
	})
}

func (s moodySession) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	s.b.moment(time.Millisecond)
	if !s.b.well.Load() && s.b.roll(10) == 0 {
		return nil, &backend.Error{Kind: backend.Retry, Err: errMood}
	}
	wake := req.Wake
	// messages during a cut are lost, and after it the waiters look again
	again := func() { wake(0) }
	req.Wake = func(w backend.Wakeup) {
		switch left := s.b.cutFor(); {
		case left > 0:
			time.AfterFunc(left, again)
		case s.b.well.Load() || s.b.roll(10) > 0:
			wake(w)
		}
	}
	if granted := req.Granted; granted != nil {
		req.Granted = func(g backend.Grant) {
			switch left := s.b.cutFor(); {
			case left > 0:
				time.AfterFunc(left, again)
			case s.b.well.Load() || s.b.roll(10) > 1:
				go granted(g)
			case s.b.roll(2) == 0: // it comes late
				go func() {
					s.b.moment(3 * time.Second)
					granted(g)
				}()
			}
		}
	}
	return s.Session.(backend.Notifier).Subscribe(ctx, req)
}

// A history is a random one of several clients.
type history struct {
	*testing.T
	store   *moody
	clients []*Client
	ledgers []*ledger   // of these
	shared  []*RWLocker // one a client, for plain calls
	fairs   []*Locker   // the same
	// somebody forces the lock now and then: then it excludes nobody for a while
	forces bool
	closes bool // a client is closed in the middle
	token  atomic.Uint64
	many   int  // goroutines
	acts   int  // of each
	harsh  bool // processes stand still and subscriptions are cut now and then

	checking sync.Mutex
	free     time.Time             // when somebody last had the lock, or nobody waited
	idle     map[lockKey]time.Time // the same, of the others
}

// A valid hold, for the rule that a writer is alone.
type validHold struct {
	client int
	party  party
	owner  string // in the store
	kind   backend.Kind
}

// check looks whether a writer is alone, as far as the clients believe, and whether somebody waits
// for nobody.
func (h *history) check() {
	if h.forces {
		return
	}
	h.checking.Lock()
	defer h.checking.Unlock()
	h.checkOthers()
	valid, waits := h.holds()
	var writer *validHold
	for v := range valid {
		if v.kind == backend.Write {
			writer = &v
		}
	}
	for v := range valid {
		if writer != nil && (v.client != writer.client || v.party != writer.party) {
			h.Errorf("a writer isn't alone: %v", slices.Collect(maps.Keys(valid)))
			return
		}
	}
	switch now := time.Now(); {
	case len(valid) > 0 || !waits || !h.store.calm(now):
		h.free = now
	case now.Sub(h.free) > 5*time.Second && !h.closes:
		h.Error("somebody waits, and nobody has the lock")
		h.stuck()
		h.free = now.Add(time.Hour) // to say so once
	}
}

// holds returns the valid holds of the lock, and whether anybody waits for it.
func (h *history) holds() (valid map[validHold]bool, waits bool) {
	valid = make(map[validHold]bool)
	for i, c := range h.clients {
		c.mu.Lock()
		for _, o := range c.state.objects[protocol.ReadWrites] {
			waits = waits || waitsForStore(o)
			holds := o.readers()
			if o.alone != nil {
				holds = append(holds, o.alone)
			}
			for _, x := range holds {
				if x.valid(c.now()) {
					valid[validHold{i, x.party, x.claim.owner, backend.Kind(x.kind)}] = true
				}
			}
		}
		c.mu.Unlock()
	}
	return valid, waits
}

// waitsForStore says whether anybody waits for more than the unlock of its own Locker. The party
// that is to unlock that may have lost the lock long ago, and stay.
func waitsForStore(o *object) bool {
	for q := range o.queues() {
		for a := q.first; a != nil; a = a.next {
			if !a.parked() {
				return true
			}
		}
	}
	return false
}

const someSemaphore = 4 // permits

// checkOthers looks whether other locks have one holder at most, and permits no more than there
// are.
func (h *history) checkOthers() {
	holders, permits := make(map[string][]validHold), 0
	waits, now := make(map[lockKey]bool), time.Now()
	for i, c := range h.clients {
		c.mu.Lock()
		h.checkAlarms(c)
		for _, f := range []protocol.Family{protocol.Locks, protocol.Semaphores} {
			for _, o := range c.state.objects[f] {
				waits[o.key()] = waits[o.key()] || waitsForStore(o)
			}
		}
		for name, o := range c.state.objects[protocol.Locks] {
			if o.alone != nil && o.alone.valid(c.now()) {
				holders[name] = append(holders[name], validHold{
					i, o.alone.party, o.alone.claim.owner, backend.Kind(o.alone.kind),
				})
			}
		}
		for _, o := range c.state.objects[protocol.Semaphores] {
			for x := range o.permitted() {
				if x.valid(c.now()) {
					permits += x.claim.more.many
				}
			}
		}
		c.mu.Unlock()
	}
	maps.DeleteFunc(h.idle, func(key lockKey, _ time.Time) bool { return !waits[key] })
	for key := range waits {
		switch {
		case !waits[key], len(holders[key.name]) > 0, key.family == protocol.Semaphores &&
			permits > 0,
			!h.store.calm(now), h.idle[key] == time.Time{}:
			h.idle[key] = now
		case now.Sub(h.idle[key]) > 5*time.Second && !h.closes:
			h.Errorf("somebody waits for %v, and nobody has it", key)
			h.stuck()
			h.idle[key] = now.Add(time.Hour) // to say so once
		}
	}
	for name, all := range holders {
		if len(all) > 1 {
			h.Errorf("%s is held by several: %v", name, all)
		}
	}
	if permits > someSemaphore {
		h.Errorf("%d permits are out", permits)
	}
}

// checkAlarms looks whether a call that has returned, and may be another's by now, is to be woken.
// The client's mutex is held.
func (h *history) checkAlarms(c *Client) {
	for i, x := range c.state.alarms.heap {
		if x.place != i+1 {
			h.Errorf("an alarm is at place %d, and says %d", i+1, x.place)
		}
		if a, ok := x.task.(*acquisition); ok && a.in == nil && a.handed == nil {
			h.Errorf("somebody is to be woken who doesn't wait: %v %q", a.kind, a.name)
		}
	}
}

// unlocked checks what an unlock has returned.
func (h *history) unlocked(what string, err error) {
	h.Helper()
	if h.forgotten(err) {
		return
	}
	if err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrUnavailable) &&
		!(h.closes && errors.Is(err, ErrClosed)) {
		h.Errorf("%s: %v", what, err)
	}
}

// forgotten says whether an unlock finds nothing since a client has forgotten a loss: that was more
// than ten leases ago.
func (h *history) forgotten(err error) bool {
	return h.harsh && errors.Is(err, ErrNotHeld) && slices.ContainsFunc(h.clients, func(
		c *Client,
	) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.state.forgot
	})
}

// locked says whether a call has locked, and checks what it returned if not.
func (h *history) locked(what string, err error) bool {
	h.Helper()
	switch {
	case err == nil:
		h.check()
		return true
	case errors.Is(err, ErrNotAcquired), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, context.Canceled), errors.Is(err, ErrUnavailable),
		errors.Is(err, ErrLost), errors.Is(err, ErrUpgrade), h.closes && errors.Is(err, ErrClosed):
	default:
		h.Errorf("%s: %v", what, err)
	}
	return false
}

func (h *history) stay(r *rand.Rand) {
	if h.harsh && r.IntN(4) == 0 {
		h.strike(r)
	}
	for range 1 + r.IntN(3) {
		time.Sleep(time.Duration(r.IntN(15)) * time.Millisecond)
		h.check()
	}
	if r.IntN(30) == 0 {
		time.Sleep(time.Duration(r.IntN(8)) * time.Second)
		h.check()
	}
}

// options returns how a call locks, and until when.
func (h *history) options(
	ctx context.Context, r *rand.Rand,
) (context.Context, context.CancelFunc, []AcquireOption) {
	var opts []AcquireOption
	switch r.IntN(8) {
	case 0, 1:
		opts = append(opts, FixedLease(time.Duration(1+r.IntN(4000))*time.Millisecond))
	case 2:
		opts = append(opts,
			RenewedLease([]time.Duration{500 * time.Millisecond, 3 * time.Second,
				20 * time.Second}[r.IntN(3)]))
	}
	if r.IntN(4) == 0 {
		opts = append(opts, Wait(time.Duration(r.IntN(3)*r.IntN(300))*time.Millisecond))
	}
	if r.IntN(4) == 0 {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(200))*time.Millisecond)
		return ctx, cancel, opts
	}
	return ctx, func() {}, opts
}

// lock locks in one of several ways.
func (h *history) lock(ctx context.Context, r *rand.Rand, l *Locker) bool {
	bounded, cancel, opts := h.options(ctx, r)
	defer cancel()
	if r.IntN(3) == 0 {
		ok, err := l.TryLock(bounded, opts...)
		return h.locked("TryLock", err) && ok
	}
	return h.locked("LockContext", l.LockContext(bounded, opts...))
}

// act does one thing.
func (h *history) act(r *rand.Rand) {
	i := r.IntN(len(h.clients))
	c, rw := h.clients[i], h.shared[i]
	ctx := context.Background()
	switch r.IntN(16) {
	case 12:
		h.permits(r, c)
	case 13, 14:
		h.fair(r, c, h.fairs[i])
	case 0, 1, 2, 3: // reads, plainly
		if h.lock(ctx, r, rw.Reader()) {
			h.stay(r)
			h.unlocked("RUnlock", rw.Reader().UnlockContext(ctx))
		}
	case 4: // writes, plainly
		if h.lock(ctx, r, rw.Writer()) {
			h.stay(r)
			h.unlocked("Unlock", rw.Writer().UnlockContext(ctx))
		}
	case 5: // reads or writes plainly, with a Locker of its own
		own := c.RWLocker("x")
		l := []*Locker{own.Reader(), own.Writer()}[r.IntN(2)]
		if h.lock(ctx, r, l) {
			h.stay(r)
			h.unlocked("own unlock", l.UnlockContext(ctx))
		}
	case 6:
		h.owner(WithOwner(ctx, NewOwner()), r, c.RWLocker("x"))
	case 7:
		h.again(WithOwner(ctx, NewOwner()), r, c.RWLocker("x"))
	case 8:
		h.party(r, c, rw)
	case 9:
		h.handle(r, rw)
	case 10:
		h.fenced(r, c)
	default:
		if h.forces && r.IntN(3) == 0 {
			[]*Locker{rw.Reader(), rw.Writer()}[r.IntN(2)].ForceUnlock(ctx)
		}
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
	}
}

// owner writes, reads, and goes on reading, in any order of unlocks.
func (h *history) owner(ctx context.Context, r *rand.Rand, rw *RWLocker) {
	var mine []*Locker
	for range 1 + r.IntN(4) {
		l := []*Locker{rw.Reader(), rw.Writer()}[r.IntN(2)]
		if len(mine) > 0 && l == rw.Writer() && !slices.Contains(mine, rw.Writer()) {
			held, _ := rw.Reader().HoldCount(ctx)
			if err := l.LockContext(ctx); err == nil {
				mine = append(mine, l)
				lost := rw.Reader().UnlockContext(ctx)
				if !h.forgotten(lost) && !errors.Is(lost, ErrLost) {
					h.Errorf("an owner writes who reads: %v, it had %d", lost, held)
				}
				mine = slices.Delete(mine, slices.Index(mine, rw.Reader()),
					slices.Index(mine, rw.Reader())+1)
			} else if !errors.Is(err, ErrUpgrade) {
				h.locked("upgrade", err)
			}
			continue
		}
		if h.lock(ctx, r, l) {
			mine = append(mine, l)
			h.stay(r)
		}
	}
	r.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
	for _, l := range mine {
		h.stay(r)
		h.unlocked("an owner's unlock", l.UnlockContext(ctx))
	}
}

// again writes, and reads under that again and again.
func (h *history) again(ctx context.Context, r *rand.Rand, rw *RWLocker) {
	if !h.lock(ctx, r, rw.Writer()) {
		return
	}
	reads := 0
	for range 2 + r.IntN(4) {
		bounded, cancel := context.WithTimeout(ctx, time.Duration(1+r.IntN(100))*time.Millisecond)
		if h.locked("reading under a write", rw.Reader().LockContext(bounded)) {
			reads++
		}
		cancel()
		time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
		if h.check(); reads > 0 && r.IntN(4) > 0 {
			h.unlocked("reading under a write", rw.Reader().UnlockContext(ctx))
			reads--
		}
	}
	h.unlocked("a write with reads", rw.Writer().UnlockContext(ctx))
	for range reads {
		h.stay(r)
		h.unlocked("reading after a write", rw.Reader().UnlockContext(ctx))
	}
}

// party is several goroutines of one owner.
func (h *history) party(r *rand.Rand, c *Client, rw *RWLocker) {
	ctx := WithOwner(context.Background(), NewOwner())
	var all sync.WaitGroup
	l := []*Locker{rw.Reader(), rw.Writer(), rw.Reader()}
	for i := range 2 + r.IntN(3) {
		r := rand.New(rand.NewPCG(r.Uint64(), 1))
		side := l[r.IntN(3)]
		all.Go(func() {
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			bounded, cancel := context.WithTimeout(ctx,
				time.Duration(1+r.IntN(1000))*time.Millisecond)
			defer cancel()
			err := side.LockContext(bounded)
			if errors.Is(err, ErrUpgrade) {
				return
			}
			if h.locked(fmt.Sprint("party ", i), err) {
				h.stay(r)
				h.unlocked("a party's unlock", side.UnlockContext(ctx))
			}
		})
	}
	all.Wait()
}

// handle has a Hold, and what is done within.
func (h *history) handle(r *rand.Rand, rw *RWLocker) {
	l := []*Locker{rw.Reader(), rw.Writer()}[r.IntN(2)]
	bounded, cancel, opts := h.options(context.Background(), r)
	defer cancel()
	hold, err := l.Acquire(bounded, opts...)
	if !h.locked("Acquire", err) {
		return
	}
	h.stay(r)
	err = rw.Reader().Do(hold.Context(), func(ctx context.Context) error {
		h.stay(r)
		return nil
	})
	if err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrUnavailable) &&
		bounded.Err() == nil && !(h.closes && errors.Is(err, ErrClosed)) {
		h.Errorf("reading within a hold: %v", err)
	}
	h.unlocked("Release", hold.Release(context.Background()))
	if hold.Context().Err() == nil {
		h.Error("the context goes on")
	}
}

// fenced has the numbered lock of another name, or the plain or the fair one.
func (h *history) fenced(r *rand.Rand, c *Client) {
	l := []*Locker{c.FencedLocker("f"), c.FencedLocker("f"), c.Locker("f"),
		c.FairLocker("f")}[r.IntN(4)]
	bounded, cancel, opts := h.options(context.Background(), r)
	defer cancel()
	hold, err := l.Acquire(bounded, opts...)
	if !h.locked("fenced", err) {
		return
	}
	if token, ok := hold.Token(); ok && hold.Context().Err() == nil {
		if before := h.token.Swap(token); before >= token {
			h.Errorf("token %d after %d", token, before)
		}
	} else if !ok && l.kind.Numbered() {
		h.Error("no token")
	}
	h.stay(r)
	h.unlocked("fenced release", hold.Release(context.Background()))
}

// permits has some permits.
func (h *history) permits(r *rand.Rand, c *Client) {
	bounded, cancel, opts := h.options(context.Background(), r)
	defer cancel()
	n := 1 + r.IntN(3)*r.IntN(2)
	hold, err := c.Semaphore("s", max(n, someSemaphore-r.IntN(2)*r.IntN(3))).
		Acquire(bounded, n, opts...)
	if !h.locked("permits", err) {
		return
	}
	h.stay(r)
	h.unlocked("permits' release", hold.Release(context.Background()))
}

// fairParty is several goroutines of one owner in line.
func (h *history) fairParty(r *rand.Rand, c *Client) {
	ctx := WithOwner(context.Background(), NewOwner())
	var all sync.WaitGroup
	l := c.FairLocker("q")
	for range 2 + r.IntN(3) {
		r := rand.New(rand.NewPCG(r.Uint64(), 1))
		all.Go(func() {
			time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			bounded, cancel, opts := h.options(ctx, r)
			defer cancel()
			if h.locked("a party in line", l.LockContext(bounded, opts...)) {
				h.stay(r)
				h.unlocked("the unlock of a party in line", l.UnlockContext(ctx))
			}
		})
	}
	all.Wait()
}

// fair has a fair lock, perhaps that of the plain calls of its client, perhaps twice.
func (h *history) fair(r *rand.Rand, c *Client, l *Locker) {
	if h.forces && r.IntN(10) == 0 {
		l.ForceUnlock(context.Background())
	}
	if r.IntN(6) == 0 {
		h.fairParty(r, c)
		return
	}
	if r.IntN(3) == 0 {
		if h.lock(context.Background(), r, l) {
			h.stay(r)
			h.unlocked("a fair unlock", l.UnlockContext(context.Background()))
		}
		return
	}
	bounded, cancel, opts := h.options(context.Background(), r)
	defer cancel()
	l = c.FairLocker("q")
	hold, err := l.Acquire(bounded, opts...)
	if !h.locked("fair", err) {
		return
	}
	h.stay(r)
	if r.IntN(3) == 0 && h.lock(hold.Context(), r, l) {
		h.stay(r)
		if err := l.UnlockContext(hold.Context()); !errors.Is(err, ErrNotHeld) ||
			hold.Context().Err() == nil {
			h.unlocked("a fair re-entry", err)
		}
	}
	h.unlocked("a fair release", hold.Release(context.Background()))
}

// watch is how often it is looked at from outside: a short one is one of very many.
func (h *history) watch() time.Duration {
	if h.harsh {
		return 20 * time.Millisecond
	}
	return 777 * time.Microsecond
}

// strike has a process stand still or cuts subscriptions.
func (h *history) strike(r *rand.Rand) {
	c := h.clients[r.IntN(len(h.clients))]
	long := []time.Duration{20 * time.Millisecond, time.Second, 5 * time.Second}[r.IntN(3)]
	if r.IntN(2) == 0 {
		h.store.cut.Store(time.Now().Add(long).UnixNano())
		return
	}
	time.AfterFunc(long, c.ring)
	standStill(c, time.Duration(r.IntN(int(2*long))))
}

// begin makes the store and so many clients, which are closed at the end of the test.
func (h *history) begin(seed uint64, clients int, opts []Option) {
	h.idle = make(map[lockKey]time.Time)
	h.store = &moody{Backend: membackend.New(), random: rand.New(rand.NewPCG(seed, 4))}
	for range clients {
		l := new(ledger)
		c := New(h.store, slices.Concat(opts, []Option{quiet(), l.trace()})...)
		h.Cleanup(func() { c.Close() })
		h.clients = append(h.clients, c)
		h.ledgers = append(h.ledgers, l)
		h.shared = append(h.shared, c.RWLocker("x"))
		h.fairs = append(h.fairs, c.FairLocker("q"))
	}
}

// run runs a history, and looks at what is left of it.
func (h *history) run(r *rand.Rand) {
	var all sync.WaitGroup
	for range h.many {
		r := rand.New(rand.NewPCG(r.Uint64(), 2))
		all.Go(func() {
			for range h.acts {
				h.act(r)
			}
		})
	}
	watching, stop := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() {
		for watching.Err() == nil {
			time.Sleep(h.watch())
			h.check()
		}
	})
	if soon := time.Duration(r.IntN(2000)) * time.Millisecond; h.closes {
		all.Go(func() {
			time.Sleep(soon)
			h.clients[0].Close()
		})
	}
	time.AfterFunc(time.Duration(r.IntN(6))*time.Second, h.store.recover)
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Minute):
		stop()
		h.stuck()
		panic("somebody still waits")
	}
	stop()
	watch.Wait()
	if !h.closes { // a closed client takes back nothing that is under way
		// requests that come late are over, and what they did is taken back, before its lease is
		// over
		time.Sleep(25 * time.Second)
		h.nothingIsLeft()
	}
	time.Sleep(lossMemory * time.Minute)
	for i, c := range h.clients {
		if !h.closes || i > 0 {
			empty(h.T, c)
		}
		h.ledgers[i].balance(h.T)
	}
	h.nothingIsLeft()
}

// nothingIsLeft looks whether the store has something still.
func (h *history) nothingIsLeft() {
	fresh := New(h.store, quiet())
	defer fresh.Close()
	for _, l := range []*Locker{fresh.RWLocker("x").Reader(), fresh.RWLocker("x").Writer(),
		fresh.Locker("f"), fresh.FairLocker("q")} {
		if ok, err := l.TryLock(context.Background()); !ok || err != nil {
			h.Errorf("something is left in the store: %v, %v", ok, err)
			continue
		}
		must(h.T, l.UnlockContext(context.Background()))
	}
	if n, err := fresh.Semaphore("s", someSemaphore).
		Available(context.Background()); n != someSemaphore || err != nil {
		h.Errorf("%d permits of %d are left in the store: %v", n, someSemaphore, err)
	}
}

// stuck says who waits, and for whom.
func (h *history) stuck() {
	for i, c := range h.clients {
		c.mu.Lock()
		for _, table := range c.state.objects {
			for name, o := range table {
				fmt.Printf("client %d, %s: alone %+v\n", i, name, o.alone)
				for _, x := range o.readers() {
					fmt.Printf("  reads: %+v on %+v\n", x, x.claim)
				}
				for q := range o.queues() {
					for a := q.first; a != nil; a = a.next {
						fmt.Printf("  waits: %v lead %v parked %v fresh %v trying %v h %v\n",
							a.kind, q.lead == a, a.parked(), a.fresh, a.trying, a.h)
					}
				}
			}
		}
		c.mu.Unlock()
	}
}

// Random histories: a writer is alone as long as it believes in what it has, everybody gets in or
// is told why not, each unlock finds what was locked, numbers grow, and nothing is left of anybody
// at the end.
func TestRandomHistories(t *testing.T) {
	for name, sort := range map[string]struct {
		forces, closes bool
		opts           []Option
	}{
		"":                 {},
		"no hand-over":     {opts: []Option{WithHandover(0)}},
		"long hand-over":   {opts: []Option{WithHandover(time.Second)}},
		"goroutine owners": {opts: []Option{WithGoroutineOwners()}},
		"forced":           {forces: true},
		"closed":           {closes: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(histories()) {
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						r := rand.New(rand.NewPCG(seed, 3))
						h := &history{
							T: t, forces: sort.forces, closes: sort.closes, many: 12, acts: 40,
						}
						h.begin(seed, 3, append(sort.opts,
							WithLease([]time.Duration{3 * time.Second, time.Minute}[seed%2])))
						h.run(r)
					})
				})
			}
		})
	}
}

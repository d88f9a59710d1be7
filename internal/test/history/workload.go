package history

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A Lock is a lock that users contend for. Some users of a [backend.Fenced] lock use it as a plain
// lock. Users of a [backend.Read] or [backend.Write] lock use both sides. The other possible kinds
// are [backend.Exclusive], [backend.Fair] and [backend.Permits].
type Lock struct {
	Name    string
	Kind    backend.Kind
	Permits int // the limit that most calls pass
}

// A Workload makes users of several clients acquire, re-enter, query and release locks at random,
// in all possible ways. Some users hold a lock for longer than its lease. Writers may also read,
// and keep reading after they release the Write.
type Workload struct {
	Seed   uint64 // seed of all random choices, but not of the schedule
	Locks  []Lock
	Users  int           // number of users of each client
	Lease  time.Duration // the clients' lease for renewed holds
	Pace   time.Duration // longest time to wait for a lock, or to hold it
	Rounds int           // maximum number of rounds of each user
	Length time.Duration // no round begins after this time
	Forces bool          // some users call ForceUnlock
}

// Run runs the workload, and returns when all users have finished.
func (w Workload) Run(ctx context.Context, r *Recorder, clients []*dlock.Client) {
	end := time.Now().Add(w.Length)
	var all sync.WaitGroup
	for i, c := range clients {
		shared := make(map[shelf]*dlock.Locker)
		for _, l := range w.Locks {
			for _, k := range l.Kinds() {
				if k != backend.Read && k != backend.Permits {
					// Users don't share Lockers for Reads or permits, since a plain unlock could
					// give back another user's hold.
					shared[shelf{l.Name, k}] = locker(c, l.Name, k)
				}
			}
		}
		for j := range w.Users {
			u := &user{
				w:      w,
				r:      r,
				dice:   rand.New(rand.NewPCG(w.Seed, uint64(i*w.Users+j))),
				number: i*w.Users + j,
				client: i,
				c:      c,
				shared: shared,
				owner:  dlock.NewOwner(),
			}
			all.Go(func() {
				for n := 0; n < w.Rounds && time.Now().Before(end) && ctx.Err() == nil; n++ {
					u.round(ctx)
				}
			})
		}
	}
	all.Wait()
}

// Kinds returns the kinds of the Lockers with which users acquire the lock.
func (l Lock) Kinds() []backend.Kind {
	switch l.Kind {
	case backend.Fenced:
		return []backend.Kind{backend.Fenced, backend.Exclusive}
	case backend.Read, backend.Write:
		return []backend.Kind{backend.Read, backend.Write}
	default:
		return []backend.Kind{l.Kind}
	}
}

// IsFree reports whether the lock has no holder.
func (l Lock) IsFree(ctx context.Context, c *dlock.Client) (bool, error) {
	if l.Kind == backend.Permits {
		n, err := c.Semaphore(l.Name, l.Permits).Available(ctx)
		return n == l.Permits, err
	}
	for _, k := range l.Kinds() {
		if locked, err := locker(c, l.Name, k).IsLocked(ctx); locked || err != nil {
			return false, err
		}
	}
	return true, nil
}

func locker(c *dlock.Client, name string, k backend.Kind) *dlock.Locker {
	switch k {
	case backend.Fenced:
		return c.FencedLocker(name)
	case backend.Read:
		return c.RWLocker(name).Reader()
	case backend.Write:
		return c.RWLocker(name).Writer()
	case backend.Fair:
		return c.FairLocker(name)
	default:
		return c.Locker(name)
	}
}

// A shelf identifies a Locker that all users of a client share.
type shelf struct {
	name string
	kind backend.Kind
}

// A user is a goroutine that makes random calls.
type user struct {
	w      Workload
	r      *Recorder
	dice   *rand.Rand
	number int
	client int
	c      *dlock.Client
	shared map[shelf]*dlock.Locker
	owner  dlock.Owner
}

// oneIn returns true with a probability of 1/n.
func (u *user) oneIn(n int) bool { return u.dice.IntN(n) == 0 }

// upTo returns a random duration of at most d, in whole milliseconds.
func (u *user) upTo(d time.Duration) time.Duration {
	return time.Duration(u.dice.Int64N(int64(d/time.Millisecond))+1) * time.Millisecond
}

// pause waits for d, or until ctx ends.
func (u *user) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// party returns a Party for the user and a lock. For a read-write lock, the Beside field is the
// Party for the other side.
func (u *user) party(l Lock) *Party {
	at := func(k backend.Kind) *Party {
		return &Party{
			User: u.number, Client: u.client, Lease: u.w.Lease, Kind: k,
			Locker: locker(u.c, l.Name, k), Recorder: u.r,
		}
	}
	kinds := l.Kinds()
	first, second := kinds[0], kinds[len(kinds)-1]
	if u.oneIn(3) {
		first, second = second, first
	}
	p := at(first)
	if first == backend.Read || first == backend.Write {
		p.Beside = at(second)
		p.Beside.Beside = p
	}
	return p
}

// round uses a random lock once, or occasionally several locks together.
func (u *user) round(ctx context.Context) {
	if len(u.w.Locks) > 1 && u.oneIn(8) {
		u.takeAll(ctx)
		return
	}
	l := u.w.Locks[u.dice.IntN(len(u.w.Locks))]
	if l.Kind == backend.Permits {
		u.borrow(ctx, l)
		return
	}
	p := u.party(l)
	nests := true
	switch u.dice.IntN(6) {
	case 0:
		nests = false
	case 1:
		nests = false
		if common := u.shared[shelf{p.Locker.Name(), p.Kind}]; common != nil {
			p.Locker, p.Shared = common, true
		}
	case 2:
		p.Locker = p.Locker.For(u.owner)
		if p.Beside != nil {
			p.Beside.Locker = p.Beside.Locker.For(u.owner)
		}
	case 3:
		ctx = dlock.WithOwner(ctx, u.owner)
	case 4:
		u.take(ctx, p)
		return
	default:
		u.do(ctx, p)
		return
	}
	if !u.acquire(ctx, p) {
		u.look(ctx, p)
		u.pause(ctx, u.upTo(u.w.Pace/8))
		return
	}
	u.inside(ctx, p, nests)
	for p.Held() > 0 {
		u.unlock(ctx, p)
	}
	u.goOn(ctx, p.Beside)
	if u.oneIn(8) && !p.Shared {
		p.Unlock(ctx) // one unlock too many
	}
}

// borrow uses a semaphore once.
func (u *user) borrow(ctx context.Context, l Lock) {
	limit := l.Permits
	switch u.dice.IntN(8) {
	case 0:
		limit++
	case 1:
		limit = 0
	}
	b := &Borrower{
		User: u.number, Client: u.client, Lease: u.w.Lease, Semaphore: u.c.Semaphore(l.Name, limit),
		Limit: limit, Recorder: u.r,
	}
	if u.oneIn(2) {
		b.Do(ctx, u.few(l), u.askAndWait(), func(loan *Loan) { u.use(b, l, loan) })
		return
	}
	outer, cancel := context.WithCancel(ctx) // parent of the hold's context
	defer cancel()
	// The store may hang, and a single attempt has no time limit of its own. So end the call after
	// a while.
	patience := time.AfterFunc(u.upTo(u.w.Pace), cancel)
	switch loan := b.Take(outer, u.few(l), u.ask()); {
	case loan == nil:
		u.count(ctx, b)
		u.pause(ctx, u.upTo(u.w.Pace/8))
	case !patience.Stop():
		u.giveBack(ctx, loan)
	default:
		u.use(b, l, loan)
		u.giveBack(ctx, loan)
		if u.oneIn(8) {
			loan.Return(ctx) // one release too many
		}
	}
}

// few returns a random number of permits to ask for.
func (u *user) few(l Lock) int {
	if u.oneIn(2) {
		return 1
	}
	return 1 + u.dice.IntN(l.Permits)
}

// use makes random calls while the user holds permits.
func (u *user) use(b *Borrower, l Lock, loan *Loan) {
	// detach the context, so that nested acquisitions don't end with this loan
	ctx := context.WithoutCancel(loan.Context())
	loan.Check()
	for range u.dice.IntN(4) {
		switch u.dice.IntN(4) {
		case 0:
			if b.Full() {
				break
			}
			if second := b.Take(ctx, u.few(l), u.askAndWait()); second != nil {
				second.Check()
				u.pause(ctx, u.upTo(u.w.Pace/8))
				second.Check()
				u.giveBack(ctx, second)
			}
		case 1:
			u.count(ctx, b)
		default:
			u.pause(ctx, u.upTo(u.w.Pace/4))
		}
		loan.Check()
	}
	if u.oneIn(12) {
		u.pause(ctx, u.w.Pace+u.w.Pace/8)
		loan.Check()
	}
}

// count asks how many permits are available. The request has a time limit, since a store may hang.
func (u *user) count(ctx context.Context, b *Borrower) {
	ctx, cancel := context.WithTimeout(ctx, u.w.Pace)
	defer cancel()
	b.Available(ctx)
}

// giveBack returns a loan, sometimes with a short time limit.
func (u *user) giveBack(ctx context.Context, l *Loan) {
	if u.oneIn(8) {
		short, cancel := context.WithTimeout(ctx, u.upTo(u.w.Pace/8))
		defer cancel()
		ctx = short
	}
	l.Return(ctx)
}

// goOn uses p for a while and then releases it, if p is still held. p is one side of a read-write
// lock, and the user has released the other side.
func (u *user) goOn(ctx context.Context, p *Party) {
	if p == nil || p.Held() == 0 {
		return
	}
	p.Check(ctx)
	u.pause(ctx, u.upTo(u.w.Pace/8))
	p.Check(ctx)
	for p.Held() > 0 {
		u.unlock(ctx, p)
	}
}

// do performs a round in which the user acquires the lock with Do.
func (u *user) do(ctx context.Context, p *Party) {
	inside := ctx
	p.Do(ctx, u.askAndWait(), func(ctx context.Context) {
		inside = ctx
		u.inside(ctx, p, true)
		for p.Held() > 1 {
			u.unlock(ctx, p)
		}
	})
	u.goOn(inside, p.Beside)
}

// take performs a round in which the user acquires the lock with Acquire.
func (u *user) take(ctx context.Context, p *Party) {
	h := p.Take(ctx, u.askAndWait())
	if h == nil {
		return
	}
	u.inside(h.Context(), p, true)
	for p.Held() > 1 {
		u.unlock(h.Context(), p)
	}
	inside := h.Context()
	p.Release(ctx, h)
	u.goOn(inside, p.Beside)
	if u.oneIn(8) {
		p.Release(ctx, h) // one release too many
	}
}

// askAndWait returns options for a call that waits for a limited time.
func (u *user) askAndWait() Ask {
	a := u.ask()
	a.Try = false
	if a.Wait == 0 {
		a.Wait = u.upTo(u.w.Pace)
	}
	return a
}

// ask returns options for an acquiring call.
func (u *user) ask() (a Ask) {
	a.Try = u.oneIn(2)
	if u.oneIn(2) {
		a.Wait = u.upTo(u.w.Pace)
	}
	if u.oneIn(3) {
		a.Lease = u.upTo(u.w.Lease)
	}
	return a
}

// acquire tries to acquire the lock.
func (u *user) acquire(ctx context.Context, p *Party) bool {
	ctx, cancel := context.WithTimeout(ctx, u.upTo(u.w.Pace))
	defer cancel()
	return p.Acquire(ctx, u.ask())
}

// inside makes random calls while the user holds the lock.
func (u *user) inside(ctx context.Context, p *Party, nests bool) {
	p.Check(ctx)
	for range u.dice.IntN(4) {
		switch u.dice.IntN(7) {
		case 0, 1:
			u.pause(ctx, u.upTo(u.w.Pace/4))
		case 2:
			if nests {
				u.acquire(ctx, p)
			}
		case 6:
			if nests && p.Beside != nil { // a Read under a Write; a Write under a Read is refused
				u.acquire(ctx, p.Beside)
			}
		case 3:
			if p.Held() > 1 {
				u.unlock(ctx, p)
			}
		default:
			u.look(ctx, p)
		}
		u.checkAll(ctx, p)
	}
	if u.oneIn(12) {
		u.pause(ctx, u.w.Pace+u.w.Pace/8)
		u.checkAll(ctx, p)
	}
}

// checkAll checks a party's hold and, for a read-write lock, its hold on the other side.
func (u *user) checkAll(ctx context.Context, p *Party) {
	p.Check(ctx)
	if p.Beside != nil && p.Beside.Held() > 0 {
		p.Beside.Check(ctx)
	}
}

// look calls a random method that queries the lock or force-unlocks it.
func (u *user) look(ctx context.Context, p *Party) {
	ctx, cancel := context.WithTimeout(ctx, u.w.Pace) // a store may hang
	defer cancel()
	switch dice := u.dice.IntN(10); {
	case dice < 3:
		p.IsLocked(ctx)
	case dice < 4 && u.w.Forces:
		p.ForceUnlock(ctx)
	case p.Shared && p.Held() == 0:
		// Don't ask: a shared Locker answers for all of its users, so the answer can't be checked.
	case dice < 7:
		p.IsHeld(ctx)
	default:
		p.HoldCount(ctx)
	}
}

// unlock gives back a hold, sometimes with a short time limit.
func (u *user) unlock(ctx context.Context, p *Party) {
	if u.oneIn(8) {
		short, cancel := context.WithTimeout(ctx, u.upTo(u.w.Pace/8))
		defer cancel()
		ctx = short
	}
	p.Unlock(ctx)
}

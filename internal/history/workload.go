package history

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// A Workload is what random users of some clients do: they lock, in all ways that there are, stay
// for a while, look, re-enter, and unlock; some stay for longer than their lease.
type Workload struct {
	Seed   uint64        // of all choices; the schedule isn't repeated
	Names  []string      // of the locks
	Users  int           // of each client
	Lease  time.Duration // that the clients renew with
	Pace   time.Duration // how long waits and stays are, at most
	Rounds int           // of each user, at most
	Length time.Duration // after which no round begins
	Forces bool          // some use ForceUnlock
}

// Run runs the workload, and returns when all users are done.
func (w Workload) Run(ctx context.Context, r *Recorder, clients []*dlock.Client) {
	end := time.Now().Add(w.Length)
	var all sync.WaitGroup
	for i, c := range clients {
		shared := make(map[string]*dlock.Locker)
		for _, name := range w.Names {
			shared[name] = c.Locker(name)
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

// A user is one goroutine.
type user struct {
	w      Workload
	r      *Recorder
	dice   *rand.Rand
	number int
	client int
	c      *dlock.Client
	shared map[string]*dlock.Locker
	owner  dlock.Owner
}

// oneIn says yes once in n times.
func (u *user) oneIn(n int) bool { return u.dice.IntN(n) == 0 }

// upTo returns a random time, in whole milliseconds.
func (u *user) upTo(d time.Duration) time.Duration {
	return time.Duration(u.dice.Int64N(int64(d/time.Millisecond))+1) * time.Millisecond
}

// pause waits.
func (u *user) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// round uses one lock once.
func (u *user) round(ctx context.Context) {
	name := u.w.Names[u.dice.IntN(len(u.w.Names))]
	p := &Party{User: u.number, Client: u.client, Lease: u.w.Lease, Locker: u.c.Locker(name), Recorder: u.r}
	nests := true
	switch u.dice.IntN(5) {
	case 0:
		nests = false
	case 1:
		p.Locker, p.Shared, nests = u.shared[name], true, false
	case 2:
		p.Locker = p.Locker.For(u.owner)
	case 3:
		ctx = dlock.WithOwner(ctx, u.owner)
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
	if u.oneIn(8) && !p.Shared {
		p.Unlock(ctx) // once too often
	}
}

// do is a round with Do.
func (u *user) do(ctx context.Context, p *Party) {
	a := u.ask()
	a.Try = false
	if a.Wait == 0 {
		a.Wait = u.upTo(u.w.Pace)
	}
	p.Do(ctx, a, func(ctx context.Context) {
		u.inside(ctx, p, true)
		for p.Held() > 1 {
			u.unlock(ctx, p)
		}
	})
}

// ask says how to acquire.
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

// acquire tries to get the lock.
func (u *user) acquire(ctx context.Context, p *Party) bool {
	ctx, cancel := context.WithTimeout(ctx, u.upTo(u.w.Pace))
	defer cancel()
	return p.Acquire(ctx, u.ask())
}

// inside is what a holder does.
func (u *user) inside(ctx context.Context, p *Party, nests bool) {
	p.Check(ctx)
	for range u.dice.IntN(4) {
		switch u.dice.IntN(6) {
		case 0, 1:
			u.pause(ctx, u.upTo(u.w.Pace/4))
		case 2:
			if nests {
				u.acquire(ctx, p)
			}
		case 3:
			if p.Held() > 1 {
				u.unlock(ctx, p)
			}
		default:
			u.look(ctx, p)
		}
		p.Check(ctx)
	}
	if u.oneIn(12) {
		u.pause(ctx, u.w.Pace+u.w.Pace/8)
		p.Check(ctx)
	}
}

// look asks a question, or forces the lock.
func (u *user) look(ctx context.Context, p *Party) {
	ctx, cancel := context.WithTimeout(ctx, u.w.Pace) // a store may hang
	defer cancel()
	switch dice := u.dice.IntN(10); {
	case dice < 3:
		p.IsLocked(ctx)
	case dice < 4 && u.w.Forces:
		p.ForceUnlock(ctx)
	case p.Shared && p.Held() == 0:
		// The Locker would answer for all who share it.
	case dice < 7:
		p.IsHeld(ctx)
	default:
		p.HoldCount(ctx)
	}
}

// unlock gives back a hold, sometimes in a hurry.
func (u *user) unlock(ctx context.Context, p *Party) {
	if u.oneIn(8) {
		short, cancel := context.WithTimeout(ctx, u.upTo(u.w.Pace/8))
		defer cancel()
		ctx = short
	}
	p.Unlock(ctx)
}

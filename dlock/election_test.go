package dlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// A candidate is an Election whose Run goes on in a goroutine.
type candidate struct {
	*Election
	c      *Client
	reigns chan *reign
	ended  chan error
}

// A reign is a call of lead, which lasts until it is told what to return.
type reign struct {
	ctx    context.Context
	leaves chan error
}

func (r *reign) term() uint64 {
	n, _ := Token(r.ctx)
	return n
}

func campaigns(ctx context.Context, c *Client) *candidate {
	cand := &candidate{c.Election("x"), c, make(chan *reign, 10), make(chan error, 1)}
	go func() {
		cand.ended <- cand.Run(ctx, func(ctx context.Context) error {
			r := &reign{ctx, make(chan error, 1)}
			cand.reigns <- r
			return <-r.leaves
		})
	}()
	return cand
}

// leads returns a reign that has begun, as soon as nothing happens any more but by time.
func (c *candidate) leads(t *testing.T) *reign {
	t.Helper()
	synctest.Wait()
	select {
	case r := <-c.reigns:
		if !c.IsLeader() {
			t.Error("who leads is no leader")
		}
		return r
	default:
		t.Fatal("doesn't lead")
		return nil
	}
}

func (c *candidate) doesNotLead(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if len(c.reigns) > 0 || c.IsLeader() {
		t.Fatal("leads")
	}
}

// ends returns what Run has returned.
func (c *candidate) ends(t *testing.T) error {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c.ended:
		if c.IsLeader() {
			t.Error("a leader whose Run has returned")
		}
		return err
	default:
		t.Fatal("Run goes on")
		return nil
	}
}

// goesOn fails the test if Run has returned.
func (c *candidate) goesOn(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if len(c.ended) > 0 {
		t.Fatalf("Run = %v", <-c.ended)
	}
}

func (c *candidate) wantLeader(t *testing.T, want string) {
	t.Helper()
	if got, err := c.Leader(t.Context()); got != want || err != nil {
		t.Errorf("Leader = %q, %v, want %q", got, err, want)
	}
}

func TestOneOfManyLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := clientsOf(t, membackend.New(), 3)
		var all []*candidate
		for _, c := range clients {
			all = append(all, campaigns(t.Context(), c))
			synctest.Wait()
		}
		before := uint64(0)
		for len(all) > 0 {
			synctest.Wait()
			i := slices.IndexFunc(all, func(c *candidate) bool { return c.IsLeader() })
			if i < 0 {
				t.Fatal("nobody leads")
			}
			c := all[i]
			all = slices.Delete(all, i, i+1)
			r := c.leads(t)
			for _, other := range all {
				other.doesNotLead(t)
				other.wantLeader(t, c.c.ID())
			}
			if r.term() <= before {
				t.Errorf("term %d after %d", r.term(), before)
			}
			before = r.term()
			time.Sleep(3 * DefaultLease) // it is renewed
			if r.ctx.Err() != nil || !c.IsLeader() {
				t.Errorf("leads no more: %v", context.Cause(r.ctx))
			}
			r.leaves <- nil
			must(t, c.ends(t)) // and time stands still until the next leads
			if r.ctx.Err() == nil {
				t.Error("the context goes on")
			}
		}
		for _, c := range clients {
			if got, err := c.Election("x").Leader(t.Context()); got != "" || err != nil {
				t.Errorf("Leader = %q, %v", got, err)
			}
			empty(t, c)
		}
	})
}

var errLead = errors.New("what lead says")

func TestHowRunEnds(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(c *candidate, cancel context.CancelFunc)
		says error
		want []error
		not  []error
	}{
		"done":                      {says: nil},
		"an error":                  {says: errLead, want: []error{errLead}},
		"an error like a context's": {says: context.Canceled, want: []error{context.Canceled}},
		"ctx ends": {
			end:  func(_ *candidate, cancel context.CancelFunc) { cancel() },
			want: []error{context.Canceled},
		},
		"ctx ends, and lead says so": {
			end: func(_ *candidate, cancel context.CancelFunc) { cancel() }, says: context.Canceled,
			want: []error{context.Canceled},
		},
		"ctx ends, and lead fails": {
			end: func(_ *candidate, cancel context.CancelFunc) { cancel() }, says: errLead,
			want: []error{context.Canceled, errLead},
		},
		"ctx ends after a resignation": {
			end:  func(c *candidate, cancel context.CancelFunc) { c.Resign(); cancel() },
			says: ErrResigned, want: []error{context.Canceled}, not: []error{ErrResigned},
		},
		"the client is closed": {end: func(c *candidate, _ context.CancelFunc) {
			c.c.Close()
		}, want: []error{ErrClosed}},
		"the client is closed, and lead fails": {
			end: func(c *candidate, _ context.CancelFunc) { c.c.Close() }, says: errLead,
			want: []error{ErrClosed, errLead},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				c, other := New(store, quiet()), New(store, quiet())
				defer c.Close()
				defer other.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cand := campaigns(ctx, c)
				r := cand.leads(t)
				if test.end != nil {
					test.end(cand, cancel)
					synctest.Wait()
					if r.ctx.Err() == nil || cand.IsLeader() {
						t.Error("the term isn't over")
					}
					mustTryNot(t, other.Locker("x")) // before lead has returned
				}
				r.leaves <- test.says
				err := cand.ends(t)
				if len(test.want) == 0 {
					must(t, err)
				}
				for _, want := range test.want {
					if !errors.Is(err, want) {
						t.Errorf("Run = %v, want %v", err, want)
					}
				}
				for _, not := range test.not {
					if errors.Is(err, not) {
						t.Errorf("Run = %v", err)
					}
				}
				mustTry(t, other.Locker("x"))
				if e, ok := errors.AsType[*Error](err); test.end != nil &&
					(!ok || e.Op != "run" || e.Name != "x") {
					t.Errorf("Run = %#v", err)
				}
			})
		})
	}
}

// After a loss it makes no difference what lead returns: what it says last may be that a write of
// its was refused.
func TestALeaderThatHasLostCampaignsAgain(t *testing.T) {
	for name, says := range map[string]func(ctx context.Context) error{
		"nothing": func(context.Context) error { return nil },
		"the end": func(ctx context.Context) error {
			return fmt.Errorf("query: %w", ctx.Err())
		},
		"the cause":     context.Cause,
		"ErrLost":       func(context.Context) error { return ErrLost },
		"its own error": func(context.Context) error { return errLead },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, log := membackend.New(), new(logs)
				c, other := New(store, WithLogger(log.logger())), New(store, quiet())
				defer c.Close()
				defer other.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				cand := campaigns(ctx, c)
				r := cand.leads(t)
				if _, err := other.FencedLocker("x").ForceUnlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				h, err := other.FencedLocker("x").Acquire(t.Context())
				must(t, err)
				<-r.ctx.Done()
				if _, ok := errors.AsType[*Loss](context.Cause(r.ctx)); !ok || cand.IsLeader() {
					t.Errorf("IsLeader = %v, cause %v", cand.IsLeader(), context.Cause(r.ctx))
				}
				r.leaves <- says(r.ctx)
				cand.doesNotLead(t)
				cand.goesOn(t)
				must(t, h.Release(t.Context()))
				again := cand.leads(t)
				if number, _ := h.Token(); again.term() <= number || number <= r.term() {
					t.Errorf("terms %d, %d, %d", r.term(), number, again.term())
				}
				again.leaves <- nil
				must(t, cand.ends(t))
				want := 0
				if name == "its own error" {
					want = 1
				}
				if n := log.count("lead returned an error", "x"); n != want {
					t.Errorf("%d errors of lead are in the log, want %d", n, want)
				}
				empty(t, c)
			})
		})
	}
}

// That the lock was lost may be known to the store alone when lead returns.
func TestALossThatTheReleaseFinds(t *testing.T) {
	for _, says := range []error{nil, errLead} {
		synctest.Test(t, func(t *testing.T) {
			store := membackend.New()
			c, other := New(store, quiet()), New(store, quiet())
			defer c.Close()
			defer other.Close()
			cand := campaigns(t.Context(), c)
			r := cand.leads(t)
			if _, err := other.FencedLocker("x").ForceUnlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !cand.IsLeader() {
				t.Fatal("it is known already")
			}
			r.leaves <- says
			again := cand.leads(t)
			if again.term() <= r.term() {
				t.Errorf("terms %d and %d", r.term(), again.term())
			}
			again.leaves <- nil
			must(t, cand.ends(t))
		})
	}
}

func TestResign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := clientsOf(t, membackend.New(), 2)
		a, b := campaigns(t.Context(), clients[0]), (*candidate)(nil)
		r := a.leads(t)
		b = campaigns(t.Context(), clients[1])
		b.doesNotLead(t)
		a.Resign()
		a.Resign()
		if r.ctx.Err() == nil || context.Cause(r.ctx) != ErrResigned || a.IsLeader() {
			t.Errorf("IsLeader = %v, cause %v", a.IsLeader(), context.Cause(r.ctx))
		}
		time.Sleep(2 * DefaultLease) // lead takes its time
		b.doesNotLead(t)
		b.wantLeader(t, "a")
		resigned := time.Now()
		r.leaves <- context.Cause(r.ctx)
		rb := b.leads(t)
		if late := time.Since(resigned); late > 0 {
			t.Errorf("the next leads %v later", late)
		}
		a.doesNotLead(t)
		a.goesOn(t)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(clients[0].Waits()) != 1 {
			t.Error("doesn't campaign again, though another leads")
		}
		b.Resign()
		rb.leaves <- nil
		r = a.leads(t)
		r.leaves <- nil
		must(t, a.ends(t))
		b.doesNotLead(t) // it sits out: nobody has led since it looked
		time.Sleep(DefaultLease/3 + time.Second)
		r = b.leads(t)
		r.leaves <- nil
		must(t, b.ends(t))
		empty(t, clients[0])
		empty(t, clients[1])
	})
}

// A candidate that is alone leads again after a third of a lease, and not before.
func TestResignWithoutAnotherCandidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		cand := campaigns(ctx, c)
		r := cand.leads(t)
		cand.Resign()
		r.leaves <- nil
		time.Sleep(DefaultLease/3 - time.Millisecond)
		cand.doesNotLead(t)
		cand.Resign() // it doesn't lead: there is nothing to resign from
		cand.wantLeader(t, "")
		time.Sleep(2 * time.Millisecond)
		again := cand.leads(t)
		if again.term() <= r.term() {
			t.Errorf("terms %d and %d", r.term(), again.term())
		}
		cand.Resign()
		again.leaves <- nil
		synctest.Wait()
		cancel() // while it sits out
		if err := cand.ends(t); !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		empty(t, c)
	})
}

func TestResignWhileCampaigning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		c.Election("x").Resign() // nobody runs it
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		cand := campaigns(t.Context(), c)
		cand.doesNotLead(t)
		cand.Resign()
		must(t, h.Release(t.Context()))
		r := cand.leads(t)
		if r.ctx.Err() != nil {
			t.Errorf("the term is over: %v", context.Cause(r.ctx))
		}
		r.leaves <- nil
		must(t, cand.ends(t))
	})
}

// loseUnnoticed lets the lease of a lock be over, as in a process that stood still: no timer has
// run.
func loseUnnoticed(c *Client, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := heldOf(c, name); h != nil {
		h.claim.Gone(0)
	}
}

func TestALeaderThatWasPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		cand := campaigns(t.Context(), c)
		r := cand.leads(t)
		time.Sleep(time.Second)
		loseUnnoticed(c, "x")
		if cand.IsLeader() {
			t.Error("leads, and its lease is over")
		}
		if r.ctx.Err() == nil || !errors.Is(context.Cause(r.ctx), ErrLost) {
			t.Errorf("Err = %v, cause %v", r.ctx.Err(), context.Cause(r.ctx))
		}
		r.leaves <- nil
		time.Sleep(DefaultLease)
		cand.leads(t).leaves <- nil
		must(t, cand.ends(t))
	})
}

// A leader that has lost doesn't resign: it campaigns again at once.
func TestResignAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		cand := campaigns(t.Context(), c)
		r := cand.leads(t)
		time.Sleep(time.Second)
		loseUnnoticed(c, "x")
		cand.Resign()
		if !errors.Is(context.Cause(r.ctx), ErrLost) {
			t.Errorf("the cause is %v", context.Cause(r.ctx))
		}
		if _, err := c.FencedLocker("x").ForceUnlock(t.Context()); err != nil {
			// of what the store has still
			t.Fatal(err)
		}
		r.leaves <- nil
		cand.leads(t).leaves <- nil
		must(t, cand.ends(t))
	})
}

// Nobody else leads while a lead goes on that doesn't look at its context.
func TestALeadThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := clientsOf(t, membackend.New(), 2)
		ctx, cancel := context.WithCancel(t.Context())
		a := campaigns(ctx, clients[0])
		r := a.leads(t)
		b := campaigns(t.Context(), clients[1])
		cancel()
		time.Sleep(10 * DefaultLease)
		a.goesOn(t)
		if a.IsLeader() {
			t.Error("leads, and its context is over")
		}
		b.doesNotLead(t)
		r.leaves <- nil
		if err := a.ends(t); !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		b.leads(t).leaves <- nil
		must(t, b.ends(t))
	})
}

// A lead that never comes back gives the lock back, and its Election can be used on.
func TestALeadThatPanics(t *testing.T) {
	for name, leave := range map[string]func(){
		"panic":  func() { panic("lead") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(membackend.New(), quiet())
				defer c.Close()
				e := c.Election("x")
				var got any
				returned := false
				go func() {
					defer func() { got = recover() }()
					e.Run(t.Context(), func(context.Context) error { leave(); return nil })
					returned = true
				}()
				synctest.Wait()
				if returned || (got != nil) != (name == "panic") || e.IsLeader() {
					t.Errorf("returned %v, panic %v, leads %v", returned, got, e.IsLeader())
				}
				must(t, e.Run(t.Context(), func(context.Context) error { return nil }))
				empty(t, c)
			})
		})
	}
}

// A re-entry that lead doesn't give back goes with the term, and is logged: otherwise nobody would
// ever lead again.
func TestALeadThatGivesBackLessThanItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logs)
		clients := clientsOf(t, membackend.New(), 2, WithLogger(log.logger()))
		l := clients[0].FencedLocker("x")
		err := clients[0].Election("x").Run(t.Context(), func(ctx context.Context) error {
			must(t, l.LockContext(ctx))
			must(t, l.LockContext(ctx))
			return nil
		})
		must(t, err)
		synctest.Wait()
		if n := log.count(notGivenBack, "x"); n != 1 {
			t.Errorf("it was logged %d times", n)
		}
		next := campaigns(t.Context(), clients[1])
		next.leads(t).leaves <- nil
		must(t, next.ends(t))
		synctest.Wait()
		empty(t, clients[0])

		cand := campaigns(t.Context(), clients[0])
		first := cand.leads(t)
		must(t, l.LockContext(first.ctx))
		cand.Resign()
		first.leaves <- nil
		time.Sleep(DefaultLease)
		cand.leads(t).leaves <- nil // once more
		must(t, cand.ends(t))
	})
}

// Calls with lead's context are those of the leader, and no other candidate's.
func TestACandidateIsAPartyOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		defer c.Close()
		ctx := WithOwner(t.Context(), NewOwner())
		must(t, c.FencedLocker("x").Do(ctx, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			err := c.Election("x").Run(ctx, func(context.Context) error {
				t.Error("leads beside its owner's lock")
				return nil
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Run = %v", err)
			}
			return nil
		}))
		a, b := campaigns(ctx, c), campaigns(ctx, c)
		synctest.Wait()
		if b.IsLeader() {
			a, b = b, a
		}
		r := a.leads(t)
		b.doesNotLead(t)
		must(t, c.FencedLocker("x").Do(r.ctx, func(ctx context.Context) error {
			if n, _ := Token(ctx); n != r.term() {
				t.Errorf("a re-entry has number %d, the term is %d", n, r.term())
			}
			return nil
		}))
		r.leaves <- nil
		must(t, a.ends(t))
		b.leads(t).leaves <- nil
		must(t, b.ends(t))
	})
}

func TestElectionsThatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lead := func(context.Context) error { t.Error("leads"); return nil }
		store := membackend.New()
		c, closed := New(store, quiet()), New(store, quiet())
		defer c.Close()
		closed.Close()
		plain := New(newScript(store).with(backend.Limits{}), quiet())
		defer plain.Close()
		permits := mustAcquire(t, c.Semaphore("permits", 1), 1)
		defer permits.Release(t.Context())
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for name, test := range map[string]struct {
			e    *Election
			ctx  context.Context
			want error
		}{
			"no name":                 {c.Election(""), t.Context(), errEmptyName},
			"a store without them":    {plain.Election("x"), t.Context(), errors.ErrUnsupported},
			"a name of another kind":  {c.Election("permits"), t.Context(), ErrConflict},
			"a client that is closed": {closed.Election("x"), t.Context(), ErrClosed},
			"a context that is over":  {c.Election("x"), over, context.Canceled},
		} {
			began := time.Now()
			err := test.e.Run(test.ctx, lead)
			if !errors.Is(err, test.want) || strings.Count(err.Error(), test.want.Error()) != 1 {
				t.Errorf("%s: Run = %v, want it to say once %v", name, err, test.want)
			}
			if got, err := test.e.Leader(test.ctx); !errors.Is(err, test.want) || got != "" {
				t.Errorf("%s: Leader = %q, %v", name, got, err)
			}
			n := 0
			for got, err := range test.e.Changes(test.ctx) {
				e, ok := errors.AsType[*Error](err)
				if n++; got != "" || !errors.Is(err, test.want) || !ok || e.Op != "changes" {
					t.Errorf("%s: Changes: %q, %v", name, got, err)
				}
			}
			if n != 1 || time.Since(began) > 0 {
				t.Errorf("%s: %d changes, %v", name, n, time.Since(began))
			}
		}
		if err := c.Election("x").Run(t.Context(), nil); !errors.Is(err, errNoFunction) {
			t.Errorf("Run(nil) = %v", err)
		}
		cand := campaigns(t.Context(), c)
		r := cand.leads(t)
		if err := cand.Run(t.Context(), lead); !errors.Is(err, errRuns) {
			t.Errorf("a second Run = %v", err)
		}
		r.leaves <- nil
		must(t, cand.ends(t))
		for name, use := range map[string]func(e *Election){
			"IsLeader": func(e *Election) { e.IsLeader() }, "Resign": (*Election).Resign,
			"Joined":  func(e *Election) { e.Joined() },
			"Run":     func(e *Election) { e.Run(t.Context(), lead) },
			"Leader":  func(e *Election) { e.Leader(t.Context()) },
			"Changes": func(e *Election) { e.Changes(t.Context()) },
		} {
			for _, e := range []*Election{nil, new(Election)} {
				func() {
					defer func() {
						if text, ok := recover().(string); !ok ||
							!strings.Contains(text, "Election") {
							t.Errorf("%s of one that wasn't made: %q", name, text)
						}
					}()
					use(e)
				}()
			}
		}
	})
}

// A replica has joined once it campaigns and was answered, whether it leads or not.
func TestReplicasJoinOnceTheStoreHasAnswered(t *testing.T) {
	joined := func(t *testing.T, c *candidate, want bool) {
		t.Helper()
		synctest.Wait()
		if got := over(c.Joined()); got != want {
			t.Errorf("joined: %t, want %t", got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		var refuses atomic.Bool
		refuses.Store(true)
		b.acquire.set(func(s *acquireStep) {
			if refuses.Load() {
				s.fail(errors.New("the store is away"))
			}
		})
		clients := clientsOf(t, b, 3)
		ctx, cancel := context.WithCancel(t.Context())
		idle := &candidate{Election: clients[0].Election("x")}
		first := campaigns(ctx, clients[0])
		time.Sleep(time.Minute)
		joined(t, first, false)

		refuses.Store(false)
		time.Sleep(time.Minute)
		r := first.leads(t)
		joined(t, first, true)
		beside := campaigns(ctx, clients[0]) // its client knows who leads
		joined(t, beside, true)
		joined(t, idle, false)

		second := campaigns(ctx, clients[1])
		joined(t, second, true)
		third := campaigns(ctx, clients[1]) // in the same queue, so that only the second asks
		joined(t, third, true)

		refuses.Store(true)
		late := campaigns(ctx, clients[2])
		later := campaigns(ctx, clients[2])
		time.Sleep(time.Minute)
		joined(t, late, false)
		joined(t, later, false)
		refuses.Store(false)
		time.Sleep(time.Minute)
		joined(t, late, true)
		joined(t, later, true)

		cancel() // those that wait end
		synctest.Wait()
		r.leaves <- nil
		first.ends(t)
		joined(t, first, true)
	})
}

// A store that refuses, for whatever reason, may be put right.
func TestACampaignGoesOnWhileTheStoreRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, log := newScript(membackend.New()), new(logs)
		b.acquire.fail(&backend.Error{Kind: backend.Refused, Err: errors.New("WRONGPASS")})
		c := New(b, WithLogger(log.logger()))
		defer c.Close()
		cand := campaigns(t.Context(), c)
		time.Sleep(time.Hour)
		cand.doesNotLead(t)
		cand.goesOn(t)
		b.acquire.set(nil)
		time.Sleep(longestReport)
		cand.leads(t).leaves <- nil
		must(t, cand.ends(t))
		if n := log.count("cannot campaign yet", "x"); n < 30 || n > 200 {
			t.Errorf("logged %d times in an hour", n)
		}
	})
}

// Run says that its context has ended also where the store refuses at that moment.
func TestACampaignThatEndsAsTheStoreRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("enough")
		for name, test := range map[string]struct {
			end  func(cancel context.CancelCauseFunc)
			want []error
		}{
			"cancelled": {
				func(cancel context.CancelCauseFunc) { cancel(nil) }, []error{
					context.Canceled, ErrUnavailable, errNoPermission,
				},
			},
			"with its cause": {
				func(cancel context.CancelCauseFunc) { cancel(cause) }, []error{
					context.Canceled, cause, ErrUnavailable,
				},
			},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			b := newScript(membackend.New()).but(neverWaits) // or nobody waits for its answer
			b.acquire.set(func(s *acquireStep) {
				test.end(cancel)
				s.fail(errNoPermission)
			})
			c := New(b, quiet())
			err := c.Election("x").Run(ctx, func(context.Context) error { return nil })
			for _, want := range test.want {
				if !errors.Is(err, want) {
					t.Errorf("%s: Run = %v, want %v", name, err, want)
				}
			}
			if n := strings.Count(err.Error(), context.Canceled.Error()); n != 1 {
				t.Errorf("%s: Run says %d times that it is cancelled: %v", name, n, err)
			}
			c.Close()
		}
	})
}

// A candidate that wins as its context ends doesn't begin to lead.
func TestALeaderWhoseContextEndsAsItWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		store := membackend.New()
		c := New(store, quiet(), WithTrace(&Trace{AcquireDone: func(context.Context, AcquireDone) {
			cancel()
		}}))
		other := New(store, quiet())
		defer c.Close()
		defer other.Close()
		err := c.Election("x").Run(ctx, func(context.Context) error {
			t.Error("it leads")
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		mustTry(t, other.Locker("x"))
	})
}

// If the store doesn't confirm a release, a leader that was done returns an error, as a Do does. A
// leader that campaigns again leaves it to the log.
func TestALeaderWhoseReleaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, log := newScript(membackend.New()), new(logs)
		c := New(b, WithLogger(log.logger()))
		defer c.Close()
		fails := func(fails bool) {
			if b.release.set(nil); fails {
				b.release.fail(errSevered)
			}
		}
		cand := campaigns(t.Context(), c)
		r := cand.leads(t)
		fails(true)
		cand.Resign()
		r.leaves <- nil
		time.Sleep(longestRelease + time.Second)
		if log.count("unlock", "x") != 1 {
			t.Error("a release that failed isn't in the log")
		}
		time.Sleep(DefaultLease / 6)
		if n := len(c.Waits()); n != 0 {
			t.Error("doesn't sit out, though nobody has followed but itself, as the store knows")
		}
		fails(false)
		time.Sleep(DefaultLease) // it has it still, and isn't another
		r = cand.leads(t)
		fails(true)
		r.leaves <- errLead
		time.Sleep(longestRelease + time.Second)
		if err := cand.ends(t); !errors.Is(err, errLead) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("Run = %v", err)
		}
		fails(false)
		time.Sleep(2 * DefaultLease)
		empty(t, c)
	})
}

// Many campaign, resign, are paused and give up, and there are never two, by what they see
// themselves; nothing is left behind, and the end of each term is told once.
func TestManyCandidates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const candidates, terms = 50, 400
		store := membackend.New()
		told := new(ledger)
		var clients []*Client
		for range 5 {
			clients = append(clients, New(store, quiet(), WithLease(time.Second), told.trace()))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var led, last atomic.Uint64
		var in atomic.Pointer[Election]
		lead := func(e *Election) func(context.Context) error {
			return func(ctx context.Context) error {
				other := in.Swap(e)
				if n, _ := Token(ctx); n <= last.Swap(n) {
					t.Errorf("term %d isn't larger than the last", n)
				}
				if other != nil && other != e && other.IsLeader() && e.IsLeader() {
					t.Error("two lead")
				}
				if led.Add(1) == terms {
					cancel()
				}
				switch rand.IntN(6) {
				case 0:
					e.Resign()
					e.Resign()
				case 1:
					loseUnnoticed(e.locker.client, "x")
				case 2:
					go e.Resign()
				case 3:
					return nil
				case 4:
					return errLead
				}
				select {
				case <-ctx.Done():
				case <-time.After(rand.N(2 * time.Second)):
				}
				if ctx.Err() != nil && e.IsLeader() {
					t.Error("leads, and its context is over")
				}
				return ctx.Err()
			}
		}
		var all sync.WaitGroup
		for i := range candidates {
			all.Go(func() {
				e := clients[i%len(clients)].Election("x")
				for ctx.Err() == nil {
					patience, cancel := context.WithTimeout(ctx, rand.N(20*time.Second))
					err := e.Run(patience, lead(e))
					cancel()
					if err != nil && !errors.Is(err, errLead) &&
						!errors.Is(err, context.DeadlineExceeded) &&
						!errors.Is(err, context.Canceled) {
						t.Errorf("Run = %v", err)
					}
				}
			})
		}
		all.Wait()
		time.Sleep(lossMemory * 2 * time.Second)
		for _, c := range clients {
			empty(t, c)
			c.Close()
		}
		if len(told.open) > 0 || told.calls != 0 {
			t.Errorf("what has begun and not ended: %v, %d calls", told.open, told.calls)
		}
	})
}

// A viewer keeps what Changes returns.
type viewer struct {
	mu   sync.Mutex
	seen []string
	over bool
}

func views(ctx context.Context, e *Election) *viewer {
	v := new(viewer)
	go func() {
		for leader, err := range e.Changes(ctx) {
			v.mu.Lock()
			if err != nil {
				leader = "error"
			}
			v.seen = append(v.seen, leader)
			v.mu.Unlock()
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.over = true
	}()
	return v
}

// wants says what was seen since it was last called.
func (v *viewer) wants(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !slices.Equal(v.seen, want) {
		t.Errorf("saw %q, want %q", v.seen, want)
	}
	v.seen = nil
}

func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		clients := clientsOf(t, store, 3)
		ctx, cancel := context.WithCancel(t.Context())
		v := views(ctx, clients[2].Election("x"))
		v.wants(t, "")
		time.Sleep(time.Hour) // nobody comes
		must(t, clients[0].Locker("x").Do(t.Context(), func(context.Context) error { return nil }))
		time.Sleep(20 * time.Millisecond) // after a release somebody will lead soon
		a := campaigns(t.Context(), clients[0])
		r := a.leads(t)
		time.Sleep(100 * time.Millisecond)
		v.wants(t, "a")
		b := campaigns(t.Context(), clients[1])
		time.Sleep(time.Hour)
		v.wants(t)

		// One after the other. Nobody may be seen in between.
		a.Resign()
		r.leaves <- nil
		r = b.leads(t)
		time.Sleep(100 * time.Millisecond)
		v.mu.Lock()
		v.seen = slices.DeleteFunc(v.seen, func(s string) bool { return s == "" })
		v.mu.Unlock()
		v.wants(t, "b")

		// One that dies is seen until its lease is over.
		must(t, clients[0].Close())
		if err := a.ends(t); !errors.Is(err, ErrClosed) {
			t.Errorf("Run = %v", err)
		}
		must(t, clients[1].Close())
		time.Sleep(4 * time.Second)
		// whose looks don't fall together with the end of the lease
		late := views(ctx, clients[2].Election("x"))
		late.wants(t, "b")
		left, err := clients[2].Locker("x").TTL(t.Context())
		must(t, err)
		time.Sleep(left - time.Millisecond)
		v.wants(t)
		time.Sleep(time.Millisecond + 2*shortestWait)
		v.wants(t, "")
		late.wants(t, "")
		r.leaves <- nil
		b.ends(t)

		cancel()
		v.wants(t, "error")
		if !v.over {
			t.Error("goes on")
		}
		empty(t, clients[2])
	})
}

// A holder of the plain lock by that name keeps others from leading: it leads, as far as can be
// seen.
func TestALeaderByThePlainLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet(), WithClientID("a:b"))
		defer c.Close()
		l := c.Locker("x")
		l.Lock()
		if got, err := c.Election("x").Leader(t.Context()); got != "a:b" || err != nil {
			t.Errorf("Leader = %q, %v", got, err)
		}
		l.Unlock()
		if got, err := c.Election("x").Leader(t.Context()); got != "" || err != nil {
			t.Errorf("Leader = %q, %v", got, err)
		}
	})
}

func TestChangesWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet(), WithClientID("a"))
		l := c.Locker("x")
		l.Lock()
		v := views(t.Context(), c.Election("x"))
		v.wants(t, "a")
		for range 2 {
			store.cut(true)
			time.Sleep(DefaultLease / 2)
			v.wants(t, "error")
			store.cut(false)
			time.Sleep(DefaultLease / 2)
			v.wants(t, "a") // it leads still, but that wasn't known
		}
		l.Unlock()
		time.Sleep(time.Second)
		c.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		if last := v.seen[len(v.seen)-1]; last != "error" || !v.over {
			t.Errorf("saw %q, over %v", v.seen, v.over)
		}
	})
}

// A look that hangs is an error before long, and not of the caller's context.
func TestChangesOfAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.inspect.hang()
		c := New(store, quiet())
		defer c.Close()
		n := 0
		began := time.Now()
		for leader, err := range c.Election("x").Changes(t.Context()) {
			if n++; n == 2 {
				if leader != "" || err != nil {
					t.Errorf("%q, %v, when it answers again", leader, err)
				}
				break
			}
			if !errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) ||
				time.Since(began) > DefaultLease/3 {
				t.Errorf("%v, after %v", err, time.Since(began))
			}
			store.inspect.set(nil)
		}
		if n != 2 {
			t.Errorf("%d changes", n)
		}
	})
}

// Nobody tells of a release that comes before the store is listened to.
func TestAReleaseBeforeChangesAreToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		store.subscribe.delay(time.Second, 0)
		c := New(store, quiet(), WithClientID("a"))
		defer c.Close()
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		v := views(t.Context(), c.Election("x"))
		v.wants(t, "a")
		must(t, h.Release(t.Context()))
		time.Sleep(time.Second + shortestWait)
		v.wants(t, "")
	})
}

// While nothing changes, hardly anything is asked.
func TestChangesLookSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := new(ledger)
		store := membackend.New()
		var looks atomic.Int64
		c := New(store, quiet(), told.trace(), WithTrace(&Trace{StepDone: func(
			_ context.Context, e StepDone,
		) {
			if e.Op == "inspect" {
				looks.Add(1)
			}
		}}))
		defer c.Close()
		v := views(t.Context(), c.Election("x"))
		time.Sleep(100 * DefaultLease)
		if n := looks.Swap(0); n < 300 || n > 500 {
			t.Errorf("%d looks in 100 leases, while nobody leads", n)
		}
		l := c.Locker("x")
		l.Lock()
		time.Sleep(100 * DefaultLease)
		if n := looks.Swap(0); n < 290 || n > 330 {
			t.Errorf("%d looks in 100 leases of a leader", n)
		}
		v.wants(t, "", c.ID())
		l.Unlock()
	})
}

// A consumer that has seen enough leaves nothing behind.
func TestChangesThatNobodyWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newScript(membackend.New())
		c := New(store, quiet())
		defer c.Close()
		e := c.Election("x")
		for range e.Changes(t.Context()) {
			break
		}
		n := 0
		h, err := c.Locker("x").Acquire(t.Context())
		must(t, err)
		for range e.Changes(t.Context()) {
			if n++; n == 1 {
				must(t, h.Release(t.Context()))
				continue
			}
			break
		}
		func() {
			defer func() { recover() }()
			for range e.Changes(t.Context()) {
				panic("enough")
			}
		}()
		synctest.Wait()
		if n, ended := store.subscribe.count(), store.unsubscribed.Load(); n != 1 || ended != 1 {
			t.Errorf("%d subscriptions were made, %d given up", n, ended)
		}
		empty(t, c)
	})
}

// A waiter gets in when the lease of a dead holder ends, also if that is just after it would have
// looked anyway.
func TestALeaseThatEndsJustAfterALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := New(store, quiet()), New(store, quiet())
		defer c.Close()
		defer other.Close()
		for range 100 {
			lease := longestPause(DefaultLease) + rand.N(longestJitter)
			began := time.Now()
			mustTry(t, other.Locker("x"), FixedLease(lease))
			h, err := c.FencedLocker("x").Acquire(t.Context())
			must(t, err)
			if late := time.Since(began) - lease; late > shortestWait {
				t.Errorf("in %v after a lease of %v ended", late, lease)
			}
			must(t, h.Release(t.Context()))
		}
	})
}

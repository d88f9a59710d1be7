package quorumbackend_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/quorumbackend"
)

const (
	alice = "11111111-1111-1111-1111-111111111111:1"
	bob   = "22222222-2222-2222-2222-222222222222:7"
	lease = 30 * time.Second
)

var errDown = &backend.Error{Kind: backend.Retry, Err: errors.New("no connection")}

// An ill is a store in memory that does what a test wants. It waits, as one on the network does.
type ill struct {
	*membackend.Backend
	mu    sync.Mutex
	fails error // of each step, which isn't carried out
	loses int   // so many acquisitions are forgotten as soon as they are made
	keeps error // of each release, which isn't carried out
	// what steps wait for, if it isn't nil; they are carried out then, though nobody waits for them
	// any more
	hangs chan struct{}
	asked []string     // the steps, with their owners
	after func(string) // is called after each that is carried out at once
}

// illStores returns three, in the order in which they are asked for the lock "n", and a backend
// over them.
func illStores() ([]*ill, backend.Backend) {
	stores := []*ill{
		{Backend: membackend.New()}, {Backend: membackend.New()}, {Backend: membackend.New()},
	}
	b := quorumbackend.New(stores[0], stores[1], stores[2])
	home := quorumbackend.Home("n", len(stores))
	return append(stores[home:len(stores):len(stores)], stores[:home]...), b
}

func (s *ill) hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hangs = make(chan struct{})
}

func (s *ill) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.hangs)
	s.hangs = nil
}

func (s *ill) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

func (s *ill) then(f func(what string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = f
}

func (s *ill) refuseReleases(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeps = err
}

// wipe loses the lock "n".
func (s *ill) wipe(t *testing.T) {
	t.Helper()
	session := s.Backend.Open()
	defer session.Close()
	if res, err := session.ForceRelease(t.Context(),
		backend.ForceReleaseRequest{Name: "n"}); err != nil || !res.Released {
		t.Fatal(res, err)
	}
}

// steps returns what it was asked since the last time.
func (s *ill) steps() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func (s *ill) Open() backend.Session { return &illSession{s, s.Backend.Open()} }

// illSession can only tell waiters: its steps may wait.
type illSession struct {
	ill   *ill
	inner backend.Session
}

// carry carries out a step, sooner or later.
func carry[Req, Res any](
	ctx context.Context, s *illSession, what string, do func(context.Context, Req) (Res, error),
	req Req,
) (Res, error) {
	s.ill.mu.Lock()
	if len(s.ill.asked) < 1000 {
		s.ill.asked = append(s.ill.asked, what)
	}
	fails, hangs, after := s.ill.fails, s.ill.hangs, s.ill.after
	if s.ill.keeps != nil && strings.HasPrefix(what, "release ") {
		fails = s.ill.keeps
	}
	s.ill.mu.Unlock()
	var none Res
	if fails != nil {
		return none, fails
	}
	if hangs == nil {
		if after != nil {
			defer after(what)
		}
		return do(ctx, req)
	}
	type answer struct {
		res Res
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		<-hangs
		res, err := do(context.WithoutCancel(ctx), req)
		answers <- answer{res, err}
	}()
	select {
	case a := <-answers:
		return a.res, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

func (s *illSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return carry(ctx, s, "acquire "+req.Owner, s.acquire, req)
}

func (s *illSession) acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	s.ill.mu.Lock()
	lost := s.ill.loses > 0
	if lost {
		s.ill.loses--
	}
	s.ill.mu.Unlock()
	if lost {
		return backend.AcquireResult{Acquired: true, Count: 1}, nil
	}
	return s.inner.Acquire(ctx, req)
}

func (s *illSession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return carry(ctx, s, "release "+req.Owner, s.inner.Release, req)
}

func (s *illSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return carry(ctx, s, "renew "+req.Owner, s.inner.Renew, req)
}

func (s *illSession) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	return carry(ctx, s, "force", s.inner.ForceRelease, req)
}

func (s *illSession) Look(
	ctx context.Context, req backend.LookRequest,
) (backend.LookResult, error) {
	return carry(ctx, s, "look "+req.Owner, s.inner.Look, req)
}

func (s *illSession) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	return carry(ctx, s, "subscribe", s.inner.(backend.Notifier).Subscribe, req)
}

func (s *illSession) Close() error { return s.inner.Close() }

// held says who has "n" in a store.
func (s *ill) held(t *testing.T) string {
	t.Helper()
	session := s.Backend.Open()
	defer session.Close()
	i, err := session.(backend.Inspector).Inspect(t.Context(), backend.InspectRequest{Name: "n"})
	if err != nil {
		t.Fatal(err)
	}
	var owners []string
	for _, h := range i.Holders {
		owners = append(owners, h.Owner)
	}
	return strings.Join(owners, ", ")
}

// A tester takes steps about "n", and fails the test if they fail.
type tester struct {
	*testing.T
	s backend.Session
}

func open(t *testing.T, b backend.Backend) tester {
	s := b.Open()
	t.Cleanup(func() { s.Close() })
	return tester{t, s}
}

func acquire(owner string) backend.AcquireRequest {
	return backend.AcquireRequest{Name: "n", Owner: owner, Lease: lease}
}

func (x tester) acquires(owner string, want bool) backend.AcquireResult {
	x.Helper()
	res, err := x.s.Acquire(x.Context(), acquire(owner))
	if err != nil || res.Acquired != want {
		x.Fatalf("Acquire by %s: %+v, %v; want acquired %v", owner, res, err, want)
	}
	return res
}

func (x tester) releases(owner string, want backend.ReleaseOutcome) {
	x.Helper()
	res, err := x.s.Release(x.Context(), backend.ReleaseRequest{
		Name: "n", Owner: owner, Lease: lease,
	})
	if err != nil || res.Outcome != want {
		x.Fatalf("Release by %s: %v, %v; want %v", owner, res.Outcome, err, want)
	}
}

func (x tester) renews(owner string, want bool) {
	x.Helper()
	res, err := x.s.Renew(x.Context(), backend.RenewRequest{Name: "n", Owner: owner, Lease: lease})
	if err != nil || res.Held != want {
		x.Fatalf("Renew by %s: %v, %v; want %v", owner, res.Held, err, want)
	}
}

// gets acquires a lock of any kind for a lease, in any session.
func (x tester) gets(
	s backend.Session, k backend.Kind, owner string, lease time.Duration, want bool,
) {
	x.Helper()
	res, err := s.Acquire(x.Context(), backend.AcquireRequest{
		Kind: k, Name: "n", Owner: owner, Lease: lease,
	})
	if err != nil || res.Acquired != want {
		x.Fatalf("Acquire of kind %v by %s: %+v, %v; want acquired %v", k, owner, res, err, want)
	}
}

// gives releases it.
func (x tester) gives(
	s backend.Session, k backend.Kind, owner string, want backend.ReleaseOutcome,
) {
	x.Helper()
	res, err := s.Release(x.Context(), backend.ReleaseRequest{
		Kind: k, Name: "n", Owner: owner, Lease: lease,
	})
	if err != nil || res.Outcome != want {
		x.Fatalf("Release of kind %v by %s: %v, %v; want %v", k, owner, res.Outcome, err, want)
	}
}

// fails checks the kind of an error.
func (x tester) fails(err error, want backend.ErrorKind) {
	x.Helper()
	if err == nil || backend.KindOf(err) != want {
		x.Fatalf("error %v of kind %d; want one of kind %d", err, backend.KindOf(err), want)
	}
}

// wantHeld checks in how many stores somebody has "n".
func (x tester) wantHeld(stores []*ill, want int) {
	x.Helper()
	var got []string
	n := 0
	for _, s := range stores {
		h := s.held(x.T)
		got = append(got, "["+h+"]")
		if h != "" {
			n++
		}
	}
	if n != want {
		x.Fatalf("held in %d stores, %s; want %d", n, strings.Join(got, " "), want)
	}
}

// Where others want a lock, too, an attempt asks one store before the others. If that one refuses
// it, the attempt looks at the others, and for a while the attempts after it believe that store
// alone.
func TestOneStoreIsAskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a, other := open(t, b), open(t, b)
		for _, x := range []tester{a, other} {
			x.contests()
		}
		time.Sleep(2 * time.Second) // no store is believed alone
		for _, s := range stores {
			s.steps()
		}
		stores[0].hang()
		time.AfterFunc(time.Millisecond, func() {
			if n := len(stores[1].steps()) + len(stores[2].steps()); n > 0 {
				t.Errorf("the others were asked %d times before the first has answered", n)
			}
			stores[0].wake()
		})
		a.acquires(alice, true)
		for _, s := range stores {
			s.steps()
		}
		for n, want := range [][]int{{1, 1, 1}, {1, 0, 0}, {1, 0, 0}} {
			// at first it looks at the others
			if res := other.acquires(bob, false); res.Remaining != lease {
				t.Errorf("Remaining %v; want %v", res.Remaining, lease)
			}
			for i, want := range want {
				if got := stores[i].steps(); len(got) != want {
					t.Errorf("attempt %d: store %d was asked %q; want %d requests", n+1, i, got,
						want)
				}
			}
		}
		// The first is the last that is released.
		stores[1].hang()
		time.AfterFunc(time.Millisecond, func() {
			if got := stores[0].steps(); len(got) > 0 {
				t.Errorf("the first was asked %q before the others have answered", got)
			}
			stores[1].wake()
		})
		a.releases(alice, backend.Freed)
		a.wantHeld(stores, 0)
	})
}

// Each attempt has a name of its own, from which the client can be told.
func TestNamesOfAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		names := make(map[string]bool)
		for range 3 {
			a.acquires(alice, true)
			name := stores[0].held(t)
			if names[name] || !strings.HasPrefix(name, alice+".") {
				t.Errorf("the stores know the hold of %s by the name %q, after %v", alice, name,
					names)
			}
			names[name] = true
			a.acquires(alice, true) // a re-entry
			a.renews(alice, true)
			for _, s := range stores {
				if got := s.held(t); got != name {
					t.Errorf("a store knows it by %q, another by %q", got, name)
				}
			}
			a.releases(alice, backend.Left)
			a.releases(alice, backend.Freed)
			a.releases(alice, backend.NotHeld)
		}
	})
}

// A store that hangs is waited for 20 ms, or for as long as its round trips say, and not again for
// a second.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		a.acquires(alice, true) // so it is known how fast they are
		a.releases(alice, backend.Freed)
		stores[0].hang()
		took := func(what string, want time.Duration, f func()) {
			t.Helper()
			begin := time.Now()
			if f(); time.Since(begin) != want {
				t.Errorf("%s took %v; want %v", what, time.Since(begin), want)
			}
		}
		took("the first attempt", 20*time.Millisecond, func() { a.acquires(alice, true) })
		took("a release", 0, func() { a.releases(alice, backend.Freed) })
		took("the next attempt", 0, func() { a.acquires(alice, true) })
		took("a renewal", 0, func() { a.renews(alice, true) })
		took("a release", 0, func() { a.releases(alice, backend.Freed) })
		time.Sleep(3 * time.Second) // a vote asked for meanwhile was given up after a second
		took("one after three seconds", 20*time.Millisecond, func() { a.acquires(alice, true) })
		a.releases(alice, backend.Freed)
		stores[0].wake()
		time.Sleep(time.Hour)
		a.wantHeld(stores, 0)
	})
}

// An acquisition that a store carries out late is given back, and a late release doesn't hit the
// next attempt.
func TestLateRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a, other := open(t, b), open(t, b)
		for i := range stores {
			stores[i].hang()
			a.acquires(alice, true)
			a.wantHeld(stores, 2)
			a.releases(alice, backend.Freed)
			time.Sleep(2 * time.Second) // the releases hang, too
			a.acquires(alice, true)
			stores[i].wake()
			time.Sleep(10 * time.Second)
			a.renews(alice, true)
			synctest.Wait() // a renewal asks the store that came back for its vote
			a.wantHeld(stores, 3)
			a.releases(alice, backend.Freed)
			time.Sleep(2 * lease)
			a.wantHeld(stores, 0)
			other.acquires(bob, true)
			other.releases(bob, backend.Freed)
		}
	})
}

// An attempt that fails gives back what it has got before it returns, and says when it is worth
// another.
func TestAttemptsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		refused := &backend.Error{Kind: backend.Refused, Err: errors.New("no permission")}
		retry := &backend.Error{Kind: backend.Retry, Err: errors.New("no connection")}
		unknown := errors.New("connection lost")
		elsewhere := func(s *ill) backend.Session { return s.Backend.Open() }

		// Somebody has one of the others, and the third is down.
		foe := elsewhere(stores[1])
		defer foe.Close()
		if _, err := foe.Acquire(t.Context(), acquire(bob)); err != nil {
			t.Fatal(err)
		}
		stores[2].fail(retry)
		if res := a.acquires(alice, false); res.Remaining <= 0 || res.Remaining > time.Second {
			t.Errorf("votes were split: Remaining %v; want a moment", res.Remaining)
		}
		a.wantHeld(stores, 1)
		if _, err := foe.Release(t.Context(), backend.ReleaseRequest{
			Name: "n", Owner: bob, Lease: lease,
		}); err != nil {
			t.Fatal(err)
		}

		for _, c := range []struct {
			errs [3]error
			want backend.ErrorKind
		}{
			{[3]error{retry, retry, nil}, backend.Retry},
			{[3]error{nil, retry, retry}, backend.Retry},
			{[3]error{nil, unknown, retry}, backend.Unknown},
			{[3]error{unknown, nil, retry}, backend.Unknown},
			{[3]error{refused, retry, nil}, backend.Retry},
			{[3]error{refused, nil, refused}, backend.Refused},
		} {
			for i, s := range stores {
				s.fail(c.errs[i])
			}
			_, err := a.s.Acquire(t.Context(), acquire(alice))
			a.fails(err, c.want)
			for _, cause := range c.errs {
				if cause != nil && !errors.Is(err, cause) {
					t.Errorf("the error %q isn't %q", err, cause)
				}
			}
			a.wantHeld(stores, 0)
		}
		for i, s := range stores {
			s.fail([3]error{nil, retry, nil}[i])
		}
		time.Sleep(2 * time.Second)
		a.acquires(alice, true)
		a.releases(alice, backend.Freed)
	})
}

// A writer that has got some of the votes, and has given them back, goes on waiting. Its note stays
// where it was, and goes when the writer gives up.
func TestNoteOfAWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a, other := open(t, b), open(t, b)
		foe := stores[1].Backend.Open() // has two of three
		defer foe.Close()
		third := stores[2].Backend.Open()
		defer third.Close()
		for _, s := range []backend.Session{foe, third} {
			if res, err := s.Acquire(t.Context(), backend.AcquireRequest{
				Kind: backend.Read, Name: "n", Owner: bob, Lease: time.Second,
			}); err != nil || !res.Acquired {
				t.Fatal(res, err)
			}
		}
		write := backend.AcquireRequest{
			Kind: backend.Write, Name: "n", Owner: alice, Lease: lease, Place: time.Minute,
		}
		for range 2 {
			if res, err := a.s.Acquire(t.Context(), write); err != nil || res.Acquired {
				t.Fatalf("Acquire of a Write: %+v, %v; want refused", res, err)
			}
		}
		time.Sleep(2 * time.Second)
		read := func(want bool) {
			t.Helper()
			res, err := other.s.Acquire(t.Context(), backend.AcquireRequest{
				Kind: backend.Read, Name: "n", Owner: bob, Lease: lease,
			})
			if err != nil || res.Acquired != want {
				t.Errorf("Acquire of a Read: %+v, %v; want %v", res, err, want)
			}
		}
		read(false)
		if res, err := a.s.Release(t.Context(), backend.ReleaseRequest{
			Kind: backend.Write, Name: "n", Owner: alice, Lease: lease,
		}); err != nil || res.Outcome != backend.NotHeld {
			t.Errorf("Release of a Write that waits: %v, %v; want not held", res.Outcome, err)
		}
		read(true)
	})
}

// The note of a writer that gives up in the middle of an attempt, or where a store doesn't answer,
// goes all the same, and keeps no reader out.
func TestNoteOfAWriterWhoGivesUp(t *testing.T) {
	write := backend.AcquireRequest{
		Kind: backend.Write, Name: "n", Owner: alice, Lease: lease, Place: time.Hour,
	}
	release := func(err error) func([]*ill, tester) {
		return func(stores []*ill, a tester) {
			if res, err := a.s.Acquire(a.Context(), write); err != nil || res.Acquired {
				a.Fatal(res, err)
			}
			stores[0].fail(err)
			a.gives(a.s, backend.Write, alice, backend.NotHeld)
			stores[0].fail(nil)
		}
	}
	for name, giveUp := range map[string]func([]*ill, tester){
		"cancelled": func(stores []*ill, a tester) {
			stores[0].hang()
			stores[2].hang()
			time.AfterFunc(300*time.Millisecond, stores[0].wake)
			ctx, cancel := context.WithTimeout(a.Context(), time.Second)
			defer cancel()
			if res, err := a.s.Acquire(ctx, write); res.Acquired {
				a.Fatal(res, err)
			}
			stores[2].wake()
			time.Sleep(2 * time.Second)
			a.gives(a.s, backend.Write, alice, backend.NotHeld)
		},
		"a release isn't carried out": release(errDown),
		"a release has no answer":     release(errors.New("connection lost")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a, other := open(t, b), open(t, b)
				for _, at := range stores[:2] {
					foe := at.Backend.Open()
					defer foe.Close()
					a.gets(foe, backend.Read, bob, lease, true)
				}
				giveUp(stores, a)
				time.Sleep(2 * lease)
				a.wantHeld(stores, 0)
				other.gets(other.s, backend.Read, bob, lease, true)
			})
		})
	}
}

// While the name belongs to a lock of another kind, a store can't take back the note of a writer.
// The writer keeps the name of its attempt for as long, and so still has one note, not two.
func TestNoteOfAWriterDuringAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, b := illStores()
		a, other := open(t, b), open(t, b)
		writes := func(place time.Duration) (backend.AcquireResult, error) {
			return a.s.Acquire(t.Context(), backend.AcquireRequest{
				Kind: backend.Write, Name: "n", Owner: alice, Lease: lease, Place: place,
			})
		}
		waits := func(place time.Duration) {
			t.Helper()
			if res, err := writes(place); err != nil || res.Acquired {
				t.Fatalf("Acquire of a Write: %+v, %v; want refused", res, err)
			}
		}
		other.gets(other.s, backend.Write, bob, lease, true)
		waits(time.Hour)
		other.gives(other.s, backend.Write, bob, backend.Freed)

		other.gets(other.s, backend.Exclusive, bob, lease, true)
		_, err := writes(time.Hour)
		a.fails(err, backend.Refused)
		_, err = a.s.Release(t.Context(), backend.ReleaseRequest{
			Kind: backend.Write, Name: "n", Owner: alice, Lease: lease,
		})
		a.fails(err, backend.Refused)
		other.gives(other.s, backend.Exclusive, bob, backend.Freed)

		other.gets(other.s, backend.Write, bob, lease, true)
		waits(time.Second)
		other.gives(other.s, backend.Write, bob, backend.Freed)
		time.Sleep(2 * time.Second)
		other.gets(other.s, backend.Read, bob, lease, true)
	})
}

// A release that is under way when the session is closed goes on.
func TestCloseDuringARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		s := b.Open()
		a := tester{t, s}
		a.acquires(alice, true)
		for _, s := range stores {
			s.hang()
		}
		time.AfterFunc(time.Millisecond, func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			for _, s := range stores {
				s.wake()
			}
		})
		a.releases(alice, backend.Freed)
		a.wantHeld(stores, 0)
	})
}

// A caller that gives up in the middle of an attempt is told that it may have been carried out.
// Some stores did carry it out, and are released later.
func TestAttemptsThatAreCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		stores[1].fail(&backend.Error{Kind: backend.Retry, Err: errors.New("no connection")})
		stores[2].hang()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := a.s.Acquire(ctx, acquire(alice))
		a.fails(err, backend.Unknown)
		stores[2].wake()
		time.Sleep(2 * lease)
		a.wantHeld(stores, 0)

		stores[2].fail(&backend.Error{Kind: backend.Retry, Err: errors.New("no connection")})
		stores[0].refuseReleases(errors.New("connection lost"))
		_, err = a.s.Acquire(t.Context(), acquire(alice))
		a.fails(err, backend.Unknown)
		a.wantHeld(stores, 1)
		stores[0].refuseReleases(nil)
		time.Sleep(time.Second)
		a.wantHeld(stores, 0)
	})
}

// A store that hasn't answered a request for a short lease doesn't stand by a longer one.
func TestDoubt(t *testing.T) {
	for name, renew := range oneAndBatch {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a := open(t, b)
				a.acquires(alice, true)
				stores[1].hang()
				if held, err := renew(a, t.Context(), time.Second); err != nil || !held {
					t.Fatal(held, err)
				}
				// It carries that out after the next one.
				stores[2].fail(errors.New("connection lost"))
				late := stores[1].leave()
				_, err := renew(a, t.Context(), lease)
				a.fails(err, backend.Unknown) // one store alone has promised that
				late()
				stores[2].fail(nil)
				a.renews(alice, true)
				a.releases(alice, backend.Freed)
			})
		})
	}
}

// A store whose answer to an acquisition is lost may have carried it out: it is released there,
// too.
func TestAcquisitionWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		stores[1].fail(errors.New("connection lost"))
		a.acquires(alice, true)
		synctest.Wait()
		stores[1].fail(nil)
		attempt := strings.TrimPrefix(stores[1].steps()[0], "acquire ")
		a.gets(a.direct(stores[1]), backend.Exclusive, attempt, lease, true)
		a.wantHeld(stores, 3)
		a.releases(alice, backend.Freed)
		time.Sleep(2 * time.Second) // until the store isn't believed to be down
		a.wantHeld(stores, 0)
	})
}

// A release wakes waiters, also when the store where they listened hangs, or has lost the hold; and
// where the holder has it without that store.
func TestWaitersAreWoken(t *testing.T) {
	for name, harm := range map[string]func(stores []*ill, a tester){
		"nothing":    func([]*ill, tester) {},
		"it forgets": func(stores []*ill, a tester) { stores[0].wipe(a.T) },
		"it hangs, and is noticed": func(stores []*ill, a tester) {
			stores[0].hang()
			a.renews(alice, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a, other := open(t, b), open(t, b)
				a.acquires(alice, true)
				var woken atomic.Int32 // it may be woken by several at a time
				sub, err := other.s.(backend.Notifier).Subscribe(t.Context(),
					backend.SubscribeRequest{
						Name: "n", Wake: func(backend.Wakeup) { woken.Add(1) },
					})
				if err != nil {
					t.Fatal(err)
				}
				defer sub.Close()
				harm(stores, a)
				other.acquires(bob, false)
				synctest.Wait()
				woken.Store(0)
				a.releases(alice, backend.Freed)
				synctest.Wait()
				time.Sleep(time.Second)
				if woken.Load() == 0 {
					t.Error("nobody was woken")
				}
				if stores[0].hangs != nil {
					stores[0].wake()
				}
				time.Sleep(2 * lease)
				other.acquires(bob, true)
				other.releases(bob, backend.Freed)
			})
		})
	}
}

// A release frees nothing at a store that doesn't have the lock. A client that listens there is
// woken all the same, even if it was never refused.
func TestListenersAreWoken(t *testing.T) {
	for name, free := range map[string]func(stores []*ill, a tester, woken *int, listen func()){
		"it was down when the lock was acquired": func(
			stores []*ill, a tester, _ *int, listen func(),
		) {
			stores[0].fail(errDown)
			a.acquires(alice, true)
			stores[0].fail(nil)
			time.Sleep(2 * time.Second)
			listen()
			a.releases(alice, backend.Freed)
		},
		"it has forgotten a lock that is forced": func(
			stores []*ill, a tester, woken *int, listen func(),
		) {
			a.acquires(alice, true)
			listen()
			stores[0].wipe(a.T)
			synctest.Wait()
			*woken = 0 // that is how it forgets here
			res, err := a.s.ForceRelease(a.Context(), backend.ForceReleaseRequest{Name: "n"})
			if err != nil || !res.Released {
				a.Fatal(res, err)
			}
		},
		"it goes on forgetting": func(stores []*ill, a tester, _ *int, listen func()) {
			stores[0].loses = 4 // the lock, and what it is to wake them by
			a.acquires(alice, true)
			listen()
			a.releases(alice, backend.Freed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				other := open(t, b)
				woken := 0
				a := open(t, b)
				free(stores, a, &woken, func() {
					sub, err := other.s.(backend.Notifier).Subscribe(t.Context(),
						backend.SubscribeRequest{Name: "n", Wake: func(backend.Wakeup) { woken++ }})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(sub.Close)
				})
				synctest.Wait()
				if woken == 0 {
					t.Error("nobody was woken")
				}
				a.wantHeld(stores, 0)
			})
		})
	}
}

// A subscription that was closed isn't woken, even if a split vote had put off its wake-up.
func TestNobodyIsWokenAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		woken := 0
		sub, err := a.s.(backend.Notifier).Subscribe(t.Context(), backend.SubscribeRequest{
			Name: "n", Wake: func(backend.Wakeup) { woken++ },
		})
		if err != nil {
			t.Fatal(err)
		}
		foe, third := stores[1].Backend.Open(), stores[0].Backend.Open()
		defer foe.Close()
		defer third.Close()
		a.gets(foe, backend.Exclusive, bob, lease, true)
		stores[2].fail(errDown)
		a.acquires(alice, false)
		for range 4 {
			a.gets(third, backend.Exclusive, bob, lease, true)
			a.gives(third, backend.Exclusive, bob, backend.Freed)
		}
		synctest.Wait()
		sub.Close()
		before := woken
		time.Sleep(time.Second)
		if woken > before {
			t.Errorf("woken %d times after Close", woken-before)
		}
	})
}

// deaf is a store that tells nobody of releases.
type deaf struct{ backend.Backend }

func (d deaf) Open() backend.Session { return struct{ backend.Session }{d.Backend.Open()} }

// Where those that could tell of releases are down for a moment to subscribe is worth another
// attempt, whatever the last is like.
func TestSubscribeWhereStoresAreDown(t *testing.T) {
	for name, last := range map[string]func(*ill) backend.Backend{
		"one is deaf": func(s *ill) backend.Backend { return deaf{s} },
		"one hangs":   func(s *ill) backend.Backend { s.hang(); return s },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores := []*ill{
					{Backend: membackend.New()}, {Backend: membackend.New()},
					{Backend: membackend.New()},
				}
				a := open(t, quorumbackend.New(stores[0], stores[1], last(stores[2])))
				stores[0].fail(errDown)
				stores[1].fail(errDown)
				time.AfterFunc(time.Second, func() {
					stores[0].fail(nil)
					stores[1].fail(nil)
				})
				if stores[2].hangs != nil {
					defer stores[2].wake()
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				for {
					sub, err := a.s.(backend.Notifier).Subscribe(ctx, backend.SubscribeRequest{
						Name: "n", Wake: func(backend.Wakeup) {},
					})
					if err == nil {
						sub.Close()
						break
					}
					if ctx.Err() != nil || backend.KindOf(err) == backend.Refused {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// A release rings a bell for the listeners of a store that doesn't have the lock. It takes no
// longer than its context allows, and leaves no bell behind, even if the session is closed
// meanwhile.
func TestBell(t *testing.T) {
	release := func(ctx context.Context, a tester) error {
		_, err := a.s.Release(ctx, backend.ReleaseRequest{Name: "n", Owner: alice, Lease: lease})
		return err
	}
	for name, free := range map[string]func(context.Context, *ill, tester) error{
		"the store hangs": func(ctx context.Context, at *ill, a tester) error {
			at.hang()
			return release(ctx, a)
		},
		"the store hangs after a forced release": func(
			ctx context.Context, at *ill, a tester,
		) error {
			at.then(func(string) { at.hang() })
			_, err := a.s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"})
			return err
		},
		"the session is closed": func(ctx context.Context, at *ill, a tester) error {
			at.then(func(what string) {
				if strings.HasPrefix(what, "acquire ") {
					a.s.Close()
				}
			})
			return release(ctx, a)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stores, b := illStores()
				a, at := open(t, b), stores[0]
				at.fail(errDown)
				a.acquires(alice, true)
				at.fail(nil)
				time.Sleep(2 * time.Second) // nothing is believed to be down
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				begin := time.Now()
				if err := free(ctx, at, a); err != nil || time.Since(begin) > 10*time.Millisecond {
					t.Errorf("took %v of 10 ms: %v", time.Since(begin), err)
				}
				at.then(nil)
				if at.hangs != nil {
					at.wake()
				}
				time.Sleep(2 * time.Second)
				a.wantHeld(stores, 0)
			})
		})
	}
}

// A store has forgotten a write, but has its owner's read under it. When the write is forced, the
// store keeps that read, which it can't tell from a read alone. The owner's next renewal ends it.
func TestForcedWriteThatAStoreHasForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a, other := open(t, b), open(t, b)
		for _, k := range []backend.Kind{backend.Write, backend.Read} {
			if res, err := a.s.Acquire(t.Context(), backend.AcquireRequest{
				Kind: k, Name: "n", Owner: alice, Lease: lease,
			}); err != nil || !res.Acquired {
				t.Fatal(res, err)
			}
			if k == backend.Write {
				stores[0].Wipe()
			}
		}
		res, err := other.s.ForceRelease(t.Context(), backend.ForceReleaseRequest{
			Kind: backend.Write, Name: "n",
		})
		if err != nil || !res.Released {
			t.Fatal(res, err)
		}
		a.wantHeld(stores, 1)
		renewed, err := a.s.Renew(t.Context(), backend.RenewRequest{
			Kind: backend.Read, Name: "n", Owner: alice, Lease: lease,
		})
		if err != nil || renewed.Held {
			t.Fatal(renewed, err)
		}
		synctest.Wait()
		a.wantHeld(stores, 0)
	})
}

// One that hangs doesn't keep others from being renewed.
func TestRenewBatchWithAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a := open(t, b)
		a.acquires(alice, true)
		stores[1].hang()
		begin := time.Now()
		reqs := []backend.RenewRequest{
			{Name: "n", Owner: alice, Lease: lease}, {Name: "n", Owner: bob, Lease: lease},
		}
		held := make([]bool, len(reqs))
		a.s.(backend.BatchRenewer).RenewBatch(t.Context(), reqs, func(
			i int, res backend.RenewResult, err error,
		) {
			if err != nil {
				t.Error(err)
			}
			held[i] = res.Held
		})
		if !slices.Equal(held, []bool{true, false}) || time.Since(begin) != 0 {
			t.Errorf("held %v, after %v; want the first of both, at once", held, time.Since(begin))
		}
		stores[1].wake()
		a.releases(alice, backend.Freed)
	})
}

// A look says that a lock is free only when an attempt would get it. It doesn't say that the lock
// is held if one store alone says so.
func TestLookDuringARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		a, other := open(t, b), open(t, b)
		a.acquires(alice, true)
		name := stores[0].held(t)
		for i, want := range []bool{true, false} { // the first is the last that is released
			x := stores[2-i].Backend.Open()
			defer x.Close()
			a.gives(x, backend.Exclusive, name, backend.Freed)
			if res, err := other.s.Look(t.Context(), backend.LookRequest{Name: "n"}); err != nil ||
				res.Held != want {
				t.Errorf("Look where %d of three are released: %+v, %v; want held %v", i+1, res,
					err, want)
			}
			other.acquires(bob, !want)
			time.Sleep(2 * time.Second) // so that it looks at the others anew
		}
	})
}

// After Close a session still gives back what it has, and what an attempt has left behind.
func TestReleaseAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		s := b.Open()
		a := tester{t, s}
		a.acquires(alice, true)
		stores[2].fail(errors.New("connection lost"))
		a.renews(alice, true)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		stores[2].fail(nil)
		a.releases(alice, backend.Freed)
		synctest.Wait() // nobody waits for one that has failed just now
		a.wantHeld(stores, 0)
	})
}

// Several get a lock while it is freed by force again and again. No two have it at once, unless it
// was freed in between.
func TestForceWhileCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stores, b := illStores()
		var mu sync.Mutex
		// how many forced releases have ended, and whether there is one under way
		holder, forced, forcing := "", 0, false
		var all sync.WaitGroup
		for i := range 6 {
			x, owner := open(t, b), string(rune('a'+i))
			all.Go(func() {
				for n := range 200 {
					mu.Lock()
					before := forced
					mu.Unlock()
					res, err := x.s.Acquire(t.Context(), acquire(owner))
					if err != nil {
						t.Error(err)
						return
					}
					if res.Acquired {
						mu.Lock()
						if forced == before && !forcing { // otherwise it may have been freed already
							if holder != "" {
								t.Errorf("%s has the lock, and so has %s", owner, holder)
							}
							holder = owner
						}
						mu.Unlock()
						time.Sleep(time.Duration(n%3) * time.Millisecond)
						mu.Lock()
						if holder == owner {
							holder = ""
						}
						mu.Unlock()
						if _, err := x.s.Release(t.Context(), backend.ReleaseRequest{
							Name: "n", Owner: owner, Lease: lease,
						}); err != nil {
							t.Error(err)
							return
						}
					}
					if i == 0 && n%20 == 0 {
						mu.Lock()
						forcing = true
						mu.Unlock()
						_, err := x.s.ForceRelease(t.Context(),
							backend.ForceReleaseRequest{Name: "n"})
						mu.Lock()
						forcing, holder = false, ""
						forced++
						mu.Unlock()
						if err != nil {
							t.Error(err)
							return
						}
					}
					time.Sleep(time.Duration(i) * time.Millisecond)
				}
			})
		}
		all.Wait()
		time.Sleep(2 * lease)
		tester{t, nil}.wantHeld(stores, 0)
	})
}

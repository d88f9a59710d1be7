package shards

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlocktest"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/quorumbackend"
)

// goes has a set run until the test says otherwise, and returns how to end that, and its error.
func goes(
	t *testing.T, s *Set, fn func(context.Context, *Shard) error,
) (end func(error), ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, fn) }()
	t.Cleanup(func() { cancel(nil) })
	return cancel, done
}

type key struct{}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newClient(t *testing.T, store *dlocktest.Store) *dlock.Client {
	c := dlock.New(store, dlock.WithLogger(discard()))
	t.Cleanup(func() { c.Close() })
	return c
}

// until waits for the end of a context.
func until(ctx context.Context, _ *Shard) error { <-ctx.Done(); return nil }

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		c := newClient(t, store)
		s := New(c, "s", []string{"b", "a"}, Address("here:80"))
		select {
		case <-s.Joined():
			t.Error("joined before Run")
		default:
		}
		type begun struct {
			ctx context.Context
			*Shard
		}
		runs := make(chan begun, 2)
		end, ended := goes(t, s, func(ctx context.Context, shard *Shard) error {
			runs <- begun{ctx, shard}
			<-ctx.Done()
			if shard.Finishing().Err() != nil {
				t.Error("there is no time to finish")
			}
			return context.Cause(ctx)
		})
		<-s.Joined()
		one, two := <-runs, <-runs
		for _, r := range []begun{one, two} {
			token, ok := dlock.Token(r.ctx)
			if !ok || token != r.Token() || r.Token() == 0 {
				t.Errorf("shard %s has token %d, and its context %d", r.Name(), r.Token(), token)
			}
			if r.ctx.Value(key{}) != "value" || r.Finishing().Value(key{}) != "value" {
				t.Error("the context hasn't the values of Run's")
			}
			// It is inside the shard's lock.
			if err := c.FencedLocker("shards:s@" + r.Name()).LockContext(r.ctx); err != nil {
				t.Error("the context doesn't re-enter:", err)
			}
		}
		var names []string
		for _, info := range s.Mine() {
			names = append(names, info.Name+" "+string(info.State))
			if info.Owner != c.ID() || info.Token == 0 {
				t.Errorf("Mine has %+v", info)
			}
		}
		if want := []string{"a running", "b running"}; !slices.Equal(names, want) {
			t.Errorf("Mine = %q, want %q", names, want)
		}
		if s.Name() != "s" {
			t.Errorf("Name = %q", s.Name())
		}
		if m, ok := s.Owner("a"); !ok || m.Client != c.ID() || m.Address != "here:80" {
			t.Errorf("Owner(a) = %+v, %t", m, ok)
		}
		if _, ok := s.Owner("x"); ok {
			t.Error("a shard that isn't in the list has an owner")
		}
		all, err := New(c, "s", nil).Members(t.Context())
		if err != nil || len(all) != 1 || all[0].Client != c.ID() || all[0].State != "young" ||
			!slices.Equal(all[0].Seats, []int{0}) {
			t.Errorf("Members = %+v, %v", all, err)
		}
		if seen := s.Seen(); len(seen) != 1 || seen[0].Run != all[0].Run {
			t.Errorf("Seen = %+v, and Members = %+v", seen, all)
		}
		for info, err := range New(c, "s", []string{"a", "z"}).Table(t.Context()) {
			if err != nil || (info.Name == "a") != (info.State == Held) ||
				(info.Name == "a") != (info.Owner == c.ID()) {
				t.Errorf("Table has %+v, %v", info, err)
			}
		}
		if err := s.Run(t.Context(), until); err == nil {
			t.Error("two Runs of a Set go on")
		}

		why := errors.New("why")
		end(why)
		err = <-ended
		if e, ok := errors.AsType[*dlock.Error](err); !ok || e.Name != "shards:s" ||
			!errors.Is(err, context.Canceled) ||
			!errors.Is(err, why) {
			t.Errorf("Run = %v", err)
		}
		for _, r := range []begun{one, two} {
			if context.Cause(r.ctx) != why {
				t.Errorf("a run ended with cause %v", context.Cause(r.ctx))
			}
		}
		if len(s.Mine()) != 0 {
			t.Errorf("Mine = %v after Run", s.Mine())
		}
		// Nothing is left held, though the runs didn't give back what they re-entered: see
		// dlocktest.
	})
}

// A shard that moves ends with ErrMoved, may finish what was begun, and then goes to its next
// owner.
func TestMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		var mu sync.Mutex
		var causes []error
		fn := func(ctx context.Context, s *Shard) error {
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			causes = append(causes, context.Cause(ctx))
			return nil
		}
		a, b := New(newClient(t, store), "s", Numbered(10), WithLogger(discard())),
			New(newClient(t, store), "s", Numbered(10))
		endA, endedA := goes(t, a, fn)
		time.Sleep(time.Minute)
		endB, endedB := goes(t, b, fn)
		time.Sleep(time.Minute)
		mu.Lock()
		if len(causes) != 5 || slices.ContainsFunc(causes, func(err error) bool {
			return err != ErrMoved
		}) {
			t.Errorf("when another joins, runs end with %v", causes)
		}
		mu.Unlock()
		a.SetWeight(0)
		time.Sleep(time.Minute)
		if len(a.Mine()) != 0 || len(b.Mine()) != 10 {
			t.Errorf("drained: %v, and %v", a.Mine(), b.Mine())
		}
		a.SetWeight(4)
		time.Sleep(time.Minute)
		if len(a.Mine()) != 8 || len(b.Mine()) != 2 {
			t.Errorf("with weights of 4 and 1 they have %d and %d", len(a.Mine()), len(b.Mine()))
		}
		a.SetWeight(1)
		time.Sleep(time.Minute)
		if len(a.Mine()) != 5 || len(b.Mine()) != 5 {
			t.Errorf("with equal weights they have %d and %d", len(a.Mine()), len(b.Mine()))
		}
		endA(nil)
		<-endedA
		endB(nil)
		<-endedB
	})
}

func TestSetList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		var log bytes.Buffer
		a := New(newClient(t, store), "s", []string{"a", "b"},
			WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		b := New(newClient(t, store), "s", []string{"a", "b"})
		endA, endedA := goes(t, a, until)
		endB, endedB := goes(t, b, until)
		names := func(sets ...*Set) (all []string) {
			time.Sleep(time.Minute)
			for _, s := range sets {
				for _, info := range s.Mine() {
					if info.State == Running {
						all = append(all, info.Name)
					}
				}
			}
			slices.Sort(all)
			return all
		}
		a.SetList([]string{"c", "b", "d"}) // now lists differ, and each shard of either is run
		if got, want := names(a, b), []string{"a", "b", "c", "d"}; !slices.Equal(got, want) {
			t.Errorf("while lists differ %q run, want %q", got, want)
		}
		b.SetList([]string{"c", "b", "d"})
		if got, want := names(a, b), []string{"b", "c", "d"}; !slices.Equal(got, want) {
			t.Errorf("after that %q run, want %q", got, want)
		}
		a.SetList([]string{"x", "x"})
		if got, want := names(a, b), []string{"b", "c", "d"}; !slices.Equal(got, want) ||
			!strings.Contains(log.String(), "twice") {
			t.Errorf("after a list that is wrong %q run, want %q, and the log is %s", got, want,
				&log)
		}
		endA(nil)
		endB(nil)
		<-endedA
		<-endedB
	})
}

// A run that returns early is started again by the same member, later, with another token.
func TestEarlyReturn(t *testing.T) {
	for what, returns := range map[string]func() error{
		"nil":      func() error { return nil },
		"an error": func() error { return errors.New("broken") },
		"Goexit":   func() error { runtime.Goexit(); return nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			store := dlocktest.New(t)
			s := New(newClient(t, store), "s", []string{"a"}, WithLogger(discard()))
			tokens := make(chan uint64, 100)
			end, ended := goes(t, s, func(_ context.Context, shard *Shard) error {
				tokens <- shard.Token()
				return returns()
			})
			first, began := <-tokens, time.Now()
			synctest.Wait()
			if info := s.Mine()[0]; info.State != Failing ||
				(what == "an error") != (info.Err != nil) {
				t.Errorf("after %s: %+v", what, info)
			}
			if second := <-tokens; second <= first || time.Since(began) < time.Second {
				t.Errorf("after %s it is started again after %v, with token %d after %d", what,
					time.Since(began), second, first)
			}
			end(nil)
			<-ended
		})
	}
}

// A shard that is had too late isn't run: what has bounded the attempt has ended the context of its
// hold.
func TestShardThatIsHadTooLate(t *testing.T) {
	for what, late := range map[string]func(*run){
		"after the longest time of an attempt": func(r *run) {
			time.Sleep(2 * r.set.client.Lease())
		},
		"when it isn't wanted any more": func(r *run) { r.drop(ErrMoved) },
	} {
		synctest.Test(t, func(t *testing.T) {
			store := dlocktest.New(t)
			s := New(newClient(t, store), "s", []string{"a"}, WithLogger(discard()))
			r := &run{
				set: s, shard: "a", values: t.Context(),
				lock: s.client.FencedLocker(s.shardLock("a")),
				fn: func(ctx context.Context, _ *Shard) error {
					t.Errorf("had %s, it is run, and its context ends with %v", what,
						context.Cause(ctx))
					return nil
				},
				panicked: func(p any) { panic(p) },
			}
			r.wanted, r.drop = context.WithCancelCause(t.Context())
			defer r.drop(nil)
			if began, err := r.attempt(func() { late(r) }, dlock.Wait(0)); began || err != nil {
				t.Errorf("had %s: attempt = %t, %v", what, began, err)
			}
			store.Free(t, s.shardLock("a"))
		})
	}
}

// A run that doesn't return in its grace is overdue, and keeps its shard.
func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		var overdue, ends []RunEnd
		s := New(newClient(t, store), "s", []string{"a"}, Grace(10*time.Second),
			WithLogger(discard()),
			WithTrace(Trace{
				Overdue: func(e RunEnd) { overdue = append(overdue, e) },
				End:     func(e RunEnd) { ends = append(ends, e) },
			}))
		goesOn := make(chan struct{})
		end, ended := goes(t, s, func(ctx context.Context, shard *Shard) error {
			<-ctx.Done()
			told := time.Now()
			<-shard.Finishing().Done()
			if cause := context.Cause(shard.Finishing()); cause != ErrOverdue ||
				time.Since(told) != 10*time.Second {
				t.Errorf("after %v Finishing ends with %v", time.Since(told), cause)
			}
			<-goesOn
			return nil
		})
		<-s.Joined()
		time.Sleep(time.Second)
		end(nil)
		time.Sleep(5 * time.Second)
		if info := s.Mine()[0]; info.State != Finishing {
			t.Errorf("in its grace: %+v", info)
		}
		time.Sleep(2 * time.Minute)
		if info := s.Mine()[0]; info.State != Overdue {
			t.Errorf("after its grace: %+v", info)
		}
		other := newClient(t, store)
		if ok, err := other.FencedLocker("shards:s@a").TryLock(t.Context()); ok || err != nil {
			t.Errorf("TryLock of the shard that is overdue = %t, %v", ok, err)
		}
		synctest.Wait()
		if len(overdue) != 1 || !overdue[0].Overdue || overdue[0].Finished != 10*time.Second ||
			!errors.Is(overdue[0].Cause, context.Canceled) {
			t.Errorf("that it is overdue was told as %+v", overdue)
		}
		close(goesOn)
		<-ended
		if len(ends) != 1 || !ends[0].Overdue || ends[0].Finished < 2*time.Minute {
			t.Errorf("its end was told as %+v", ends)
		}
	})
}

func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		s := New(newClient(t, store), "s", []string{"a", "b"}, WithLogger(discard()))
		panicked := make(chan any, 1)
		go func() {
			defer func() { panicked <- recover() }()
			s.Run(t.Context(), func(ctx context.Context, shard *Shard) error {
				if shard.Name() == "a" {
					time.Sleep(time.Second)
					panic("broken")
				}
				<-ctx.Done()
				return nil
			})
		}()
		if got, ok := (<-panicked).(string); !ok || !strings.Contains(got, "broken") {
			t.Errorf("Run panics with %q", got)
		}
	})
}

// A run that doesn't return holds a panic up until the end of its grace.
func TestPanicBesideARunThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		s := New(newClient(t, store), "s", []string{"a", "b"}, Grace(10*time.Second),
			WithLogger(discard()))
		panicked, goesOn, over := make(chan any, 1), make(chan struct{}), make(chan struct{})
		go func() {
			defer func() { panicked <- recover() }()
			s.Run(t.Context(), func(ctx context.Context, shard *Shard) error {
				if shard.Name() == "a" {
					time.Sleep(time.Second)
					panic("broken")
				}
				defer close(over)
				<-goesOn
				return nil
			})
		}()
		began := time.Now()
		if got := <-panicked; got == nil {
			t.Error("Run doesn't panic")
		}
		if took := time.Since(began); took < 11*time.Second || took > 15*time.Second {
			t.Errorf("Run panics after %v", took)
		}
		close(goesOn)
		<-over
		time.Sleep(time.Second) // so that its locks are given back
	})
}

// Shards for which nobody has room are free, which is told and logged, until somebody comes.
func TestTooLittleRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		var log bytes.Buffer
		var last Change
		a := New(newClient(t, store), "s", Numbered(10), Cap(3),
			WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
			WithTrace(Trace{Change: func(c Change) { last = c }}))
		b := New(newClient(t, store), "s", Numbered(10), Cap(4), WithLogger(discard()))
		endA, endedA := goes(t, a, until)
		endB, endedB := goes(t, b, until)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(a.Mine()) != 3 || len(b.Mine()) != 4 || last.Free != 3 || last.Members != 2 ||
			last.Mine != 3 {
			t.Errorf("they have %d and %d, and the last change was %+v", len(a.Mine()),
				len(b.Mine()), last)
		}
		if !strings.Contains(log.String(), "room") {
			t.Errorf("logged was %s", &log)
		}
		c := New(newClient(t, store), "s", Numbered(10), WithLogger(discard()))
		endC, endedC := goes(t, c, until)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(a.Mine()) + len(b.Mine()) + len(c.Mine()); n != 10 || last.Free != 0 {
			t.Errorf("with a third they have %d, and the last change was %+v", n, last)
		}
		for _, end := range []func(error){endA, endB, endC} {
			end(nil)
		}
		<-endedA
		<-endedB
		<-endedC
	})
}

// Where there are more members than the store shows, what was seen before counts.
func TestMoreMembersThanCanBeSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		var log bytes.Buffer
		a := New(newClient(t, store), "s", Numbered(10),
			WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		b := New(newClient(t, store), "s", Numbered(10), WithLogger(discard()))
		endA, endedA := goes(t, a, until)
		endB, endedB := goes(t, b, until)
		time.Sleep(time.Minute)
		crowd := newClient(t, store)
		var readers []*dlock.Hold
		for range backend.MostHolders {
			h, err := crowd.RWLocker("shards:s").Reader().Acquire(t.Context(),
				dlock.HolderNote("one-more"))
			if err != nil {
				t.Fatal(err)
			}
			readers = append(readers, h)
		}
		time.Sleep(time.Minute)
		endB(nil)
		<-endedB
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(a.Mine()); n != 5 || !strings.Contains(log.String(),
			"more members than can be seen") {
			t.Errorf("in the crowd it has %d, and logged was %s", n, &log)
		}
		for _, h := range readers {
			h.Release(t.Context())
		}
		time.Sleep(time.Minute)
		if n := len(a.Mine()); n != 10 {
			t.Errorf("after the crowd has gone it has %d", n)
		}
		endA(nil)
		<-endedA
	})
}

// A run is told at once that it has lost its shard, and another may have that by then.
func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		s := New(newClient(t, store), "s", []string{"a"}, WithLogger(discard()))
		contexts := make(chan context.Context, 10)
		end, ended := goes(t, s, func(ctx context.Context, shard *Shard) error {
			contexts <- ctx
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), dlock.ErrLost) {
				<-shard.Finishing().Done() // a moment later
				if cause := context.Cause(shard.Finishing()); !errors.Is(cause, dlock.ErrLost) {
					t.Errorf("what is lost has time to finish, until %v", cause)
				}
			}
			return nil
		})
		ctx := <-contexts
		store.Lose("shards:s@a")
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), dlock.ErrLost) {
			t.Errorf("a run that has lost its shard ends with %v", context.Cause(ctx))
		}
		<-contexts // it is started again
		end(nil)
		<-ended
	})
}

// After a store has lost everything the same members have the same shards.
func TestWipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		type run struct {
			by    int
			shard string
		}
		var mu sync.Mutex
		running := map[run]bool{}
		var all []func(error)
		var ended []<-chan error
		for i := range 5 {
			s := New(newClient(t, store), "s", Numbered(50), WithLogger(discard()))
			end, done := goes(t, s, func(ctx context.Context, shard *Shard) error {
				r := run{i, shard.Name()}
				mu.Lock()
				running[r] = true
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				delete(running, r)
				return nil
			})
			all, ended = append(all, end), append(ended, done)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		before := make(map[run]bool, len(running))
		for r := range running {
			before[r] = true
		}
		mu.Unlock()
		store.Wipe()
		time.Sleep(11 * time.Second)
		mu.Lock()
		same := 0
		for r := range running {
			if before[r] {
				same++
			}
		}
		if len(running) != 50 || same < 45 {
			t.Errorf("11 s after the wipe %d shards run, %d of them where they ran before",
				len(running), same)
		}
		mu.Unlock()
		for i := range all {
			all[i](nil)
			<-ended[i]
		}
	})
}

// A writer of the members' lock freezes them, and does nothing worse.
func TestFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		var changes []Change
		a := New(newClient(t, store), "s", Numbered(10), WithLogger(discard()),
			WithTrace(Trace{Change: func(c Change) { changes = append(changes, c) }}))
		b := New(newClient(t, store), "s", Numbered(10), WithLogger(discard()))
		endA, endedA := goes(t, a, until)
		<-a.Joined()
		time.Sleep(time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		writer := newClient(t, store)
		go writer.RWLocker("shards:s").Writer().LockContext(ctx)
		time.Sleep(time.Second)
		endB, endedB := goes(t, b, until)
		time.Sleep(time.Minute)
		if len(a.Mine()) != 10 || len(b.Mine()) != 0 {
			t.Errorf("while a writer waits they have %d and %d", len(a.Mine()), len(b.Mine()))
		}
		endA(nil) // which doesn't wait for the writer
		began := time.Now()
		<-endedA
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a shutdown beside a writer took %v", took)
		}
		cancel()
		if ok, err := writer.RWLocker("shards:s").Writer().ForceUnlock(t.Context()); err != nil {
			t.Log(ok, err)
		}
		time.Sleep(time.Minute)
		if len(b.Mine()) != 10 {
			t.Errorf("and then the other has %d", len(b.Mine()))
		}
		endB(nil)
		<-endedB
	})
}

// A Set without a list shows what is held, under whatever names.
func TestTableWithoutAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		c := newClient(t, store)
		names := []string{"a", "b%c", "d{e}", "f@g!"}
		s := New(c, "odd@%!", names, WithLogger(discard()))
		end, ended := goes(t, s, until)
		time.Sleep(time.Minute)
		other := New(c, "odd", []string{"x"}, WithLogger(discard())) // whose name begins alike
		endOther, endedOther := goes(t, other, until)
		time.Sleep(time.Minute)
		var got []string
		for info, err := range New(c, "odd@%!", nil).Table(t.Context()) {
			if err != nil || info.State != Held || info.Owner != c.ID() {
				t.Errorf("Table has %+v, %v", info, err)
			}
			got = append(got, info.Name)
		}
		slices.Sort(got)
		if !slices.Equal(got, names) {
			t.Errorf("Table has %q, want %q", got, names)
		}
		end(nil)
		endOther(nil)
		<-ended
		<-endedOther
	})
}

func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		c := newClient(t, store)
		long := strings.Repeat("a", mostAddress+1)
		for what, s := range map[string]*Set{
			"empty name":     New(c, "", Numbered(1)),
			"braces":         New(c, "a{b}", Numbered(1)),
			"empty shard":    New(c, "s", []string{"a", ""}),
			"doubled shard":  New(c, "s", []string{"a", "a"}),
			"grace":          New(c, "s", Numbered(1), Grace(-1)),
			"settle":         New(c, "s", Numbered(1), Settle(-1)),
			"weight":         New(c, "s", Numbered(1), Weight(mostWeight+1)),
			"cap":            New(c, "s", Numbered(1), Cap(-1)),
			"starts":         New(c, "s", Numbered(1), Starts(0)),
			"address":        New(c, "s", Numbered(1), Address(long)),
			"too many names": New(c, "s", make([]string, mostShards+1)),
		} {
			if err := s.Run(t.Context(), until); err == nil || errors.Is(err, context.Canceled) {
				t.Errorf("%s: Run = %v", what, err)
			}
		}
		if err := New(c, "s", nil).Run(t.Context(), nil); err == nil {
			t.Error("Run accepts no function")
		}
		c.Locker("shards:s").Lock()
		if err := New(c, "s", nil).Run(t.Context(), until); !errors.Is(err, dlock.ErrConflict) {
			t.Errorf("where the name is a plain lock's: %v", err)
		}
		c.Locker("shards:s").ForceUnlock(t.Context())

		closed := dlock.New(store)
		closed.Close()
		if err := New(closed, "s", nil).Run(t.Context(), until); !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("with a closed client: %v", err)
		}
	})
}

// A poor store has only some kinds of locks.
type poor struct {
	backend.Backend
	kinds backend.Kinds
}

func (p poor) Limits() backend.Limits {
	l := p.Backend.Limits()
	l.Kinds = p.kinds
	return l
}

// A store that hasn't what it takes is refused with a sentence, by Run before it has done anything.
func TestUnsupportedStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		several := quorumbackend.New(membackend.New(), membackend.New(), membackend.New())
		for sentence, store := range map[string]backend.Backend{
			"a quorum of 3 stores can't say who has a lock": several,
			"has no fenced locks": poor{
				membackend.New(), backend.KindsOf(backend.Read, backend.Write),
			},
			"has no read locks": poor{membackend.New(), backend.KindsOf(backend.Fenced)},
		} {
			c := dlock.New(store, dlock.WithLogger(discard()))
			s := New(c, "s", Numbered(3), WithLogger(discard()))
			err := s.Run(t.Context(), until)
			if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), sentence) ||
				!strings.Contains(err.Error(), `run "shards:s"`) {
				t.Errorf("Run = %v, want %q", err, sentence)
			}
			select {
			case <-s.Joined():
				t.Errorf("%q: it has joined", sentence)
			default:
			}
			c.Close()
		}
	})
}

func TestCloseOfTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		c := newClient(t, store)
		s := New(c, "s", []string{"a"}, WithLogger(discard()))
		causes := make(chan error, 1)
		_, ended := goes(t, s, func(ctx context.Context, _ *Shard) error {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil
		})
		time.Sleep(time.Minute)
		c.Close()
		if err := <-ended; !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("Run = %v", err)
		}
		if cause := <-causes; !errors.Is(cause, dlock.ErrClosed) {
			t.Errorf("a run ended with %v", cause)
		}
	})
}

// Members of one process that share a client, and a context with an owner, exclude each other.
func TestMembersOfOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := dlocktest.New(t)
		c := newClient(t, store)
		ctx, cancel := context.WithCancel(dlock.WithOwner(t.Context(), dlock.NewOwner()))
		var mu sync.Mutex
		running := map[string]int{}
		done := make(chan error)
		for range 3 {
			s := New(c, "s", Numbered(30), WithLogger(discard()))
			go func() {
				done <- s.Run(ctx, func(ctx context.Context, shard *Shard) error {
					mu.Lock()
					if running[shard.Name()]++; running[shard.Name()] > 1 {
						t.Errorf("shard %s is run twice at once", shard.Name())
					}
					mu.Unlock()
					<-ctx.Done()
					mu.Lock()
					defer mu.Unlock()
					running[shard.Name()]--
					return nil
				})
			}()
			time.Sleep(30 * time.Second)
		}
		mu.Lock()
		if len(running) != 30 {
			t.Errorf("%d shards run", len(running))
		}
		mu.Unlock()
		cancel()
		for range 3 {
			<-done
		}
	})
}

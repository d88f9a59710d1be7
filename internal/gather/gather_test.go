package gather

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A server answers each command with its negative, when the test lets it.
type server struct {
	mu      sync.Mutex
	batches [][]int
	ctxs    []context.Context
	open    chan struct{} // one value for each batch, or closed
}

func (s *server) send(ctx context.Context, commands []int) []int {
	s.mu.Lock()
	s.batches = append(s.batches, slices.Clone(commands))
	s.ctxs = append(s.ctxs, ctx)
	s.mu.Unlock()
	<-s.open
	results := make([]int, len(commands))
	for i, c := range commands {
		results[i] = -c
	}
	return results
}

// received returns what has come so far, each batch sorted.
func (s *server) received() [][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	batches := slices.Clone(s.batches)
	for _, b := range batches {
		slices.Sort(b)
	}
	return batches
}

// run runs a test in a bubble. Everything is answered at its end.
func run(t *testing.T, f func(*testing.T, *server, *Sender[int, int])) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{open: make(chan struct{})}
		s := New(srv.send, nil)
		f(t, srv, s)
		close(srv.open)
		s.Settle()
	})
}

// A call is a Send under way.
type call struct {
	commands, results []int
	err               error
	done              chan struct{}
}

func start(ctx context.Context, s *Sender[int, int], commands ...int) *call {
	c := &call{commands: commands, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.results, c.err = s.Send(ctx, commands...)
	}()
	synctest.Wait()
	return c
}

func (c *call) mustBeAnswered(t *testing.T) {
	t.Helper()
	<-c.done
	if c.err != nil {
		t.Fatalf("%v: %v", c.commands, c.err)
	}
	for i, command := range c.commands {
		if len(c.results) != len(c.commands) || c.results[i] != -command {
			t.Fatalf("%v is answered with %v", c.commands, c.results)
		}
	}
}

func (c *call) mustFail(t *testing.T, kind backend.ErrorKind) {
	t.Helper()
	<-c.done
	if !errors.Is(c.err, context.Canceled) || backend.KindOf(c.err) != kind {
		t.Fatalf("%v: %v, want an error of kind %v", c.commands, c.err, kind)
	}
}

// fill has as many batches under way as there can be. Their commands are 1, 2, and so on.
func fill(t *testing.T, s *Sender[int, int]) (calls []*call) {
	for i := range maxFlights {
		calls = append(calls, start(t.Context(), s, i+1))
	}
	return calls
}

func TestTheFirstGoAlone(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		calls := fill(t, s)
		if got := srv.received(); len(got) != maxFlights {
			t.Fatalf("%v, want %d batches", got, maxFlights)
		}
		for range calls {
			srv.open <- struct{}{}
		}
		for _, c := range calls {
			c.mustBeAnswered(t)
		}
	})
}

func TestWhatComesMeanwhileGoesTogether(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		fill(t, s)
		calls := []*call{
			start(t.Context(), s, 10), start(t.Context(), s, 11, 12), start(t.Context(), s, 13),
		}
		if got := srv.received(); len(got) != maxFlights {
			t.Fatalf("%v are under way", got)
		}
		srv.open <- struct{}{}
		synctest.Wait()
		if got := srv.received(); len(got) != maxFlights+1 ||
			!slices.Equal(got[maxFlights], []int{10, 11, 12, 13}) {
			t.Fatalf("%v", got)
		}
		for range maxFlights {
			srv.open <- struct{}{}
		}
		for _, c := range calls {
			c.mustBeAnswered(t)
		}
	})
}

// Commands of goroutines that come back are sent, at once or later.
func TestOneAfterAnother(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		for i := range 100 {
			c := start(t.Context(), s, i)
			srv.open <- struct{}{}
			c.mustBeAnswered(t)
		}
	})
}

func TestLeavingBeforeItIsSent(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		fill(t, s)
		ctx, leave := context.WithCancel(t.Context())
		stays, leaves := start(t.Context(), s, 10), start(ctx, s, 11)
		leave()
		leaves.mustFail(t, backend.Retry)
		for range maxFlights + 1 {
			srv.open <- struct{}{}
		}
		stays.mustBeAnswered(t)
		if got := srv.received(); slices.ContainsFunc(got, func(b []int) bool {
			return slices.Contains(b, 11)
		}) {
			t.Errorf("%v was sent", got)
		}
	})
}

func TestLeavingWhileUnderWay(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		ctx, leave := context.WithCancel(t.Context())
		leaves := start(ctx, s, 1)
		leave()
		leaves.mustFail(t, backend.Unknown)

		// The late answer is nobody else's.
		next := start(t.Context(), s, 2)
		srv.open <- struct{}{}
		srv.open <- struct{}{}
		next.mustBeAnswered(t)
	})
}

// A context that ends as the answer comes leaves nothing behind for the next.
func TestLeavingAsItIsAnswered(t *testing.T) {
	srv := &server{open: make(chan struct{})}
	close(srv.open)
	s := New(srv.send, nil)
	for i := range 2000 {
		ctx, leave := context.WithCancel(t.Context())
		go leave()
		results, err := s.Send(ctx, i)
		if err == nil && !slices.Equal(results, []int{-i}) {
			t.Fatalf("%d is answered with %v", i, results)
		}
	}
	s.Settle()
}

// A command that is sent for one caller ends with the caller's context. Commands that are sent for
// several don't. Neither has the values of a context.
func TestContexts(t *testing.T) {
	type key struct{}
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		ctx, leave := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Hour)
		calls := []*call{start(ctx, s, 1)}
		for i := range maxFlights - 1 {
			calls = append(calls, start(t.Context(), s, 2+i))
		}
		calls = append(calls, start(ctx, s, 20), start(t.Context(), s, 21))
		srv.open <- struct{}{}
		synctest.Wait()
		first, last := srv.ctxs[0], srv.ctxs[maxFlights]
		if deadline, ok := first.Deadline(); !ok || !deadline.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("the first ends at %v, %v", deadline, ok)
		}
		if _, ok := last.Deadline(); ok {
			t.Error("the last has the deadline of one")
		}
		leave()
		if !errors.Is(first.Err(), context.Canceled) || last.Err() != nil {
			t.Errorf("the first: %v, the last: %v", first.Err(), last.Err())
		}
		select {
		case <-first.Done():
		default:
			t.Error("the first isn't done")
		}
		for i, sent := range srv.ctxs {
			if v := sent.Value(key{}); v != nil {
				t.Errorf("batch %d has a value: %v", i, v)
			}
		}
		for range maxFlights {
			srv.open <- struct{}{}
		}
		for _, c := range calls {
			<-c.done
		}
	})
}

func TestLongQueuesAreSplit(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		fill(t, s)
		var all sync.WaitGroup
		for i := range maxBatch + 1 {
			all.Go(func() {
				if results, err := s.Send(t.Context(), i); err != nil ||
					!slices.Equal(results, []int{-i}) {
					t.Errorf("%d is answered with %v, %v", i, results, err)
				}
			})
		}
		synctest.Wait()
		for range maxFlights + 2 {
			srv.open <- struct{}{}
		}
		all.Wait()
		var sizes []int
		for _, b := range srv.received()[maxFlights:] {
			sizes = append(sizes, len(b))
		}
		slices.Sort(sizes)
		if !slices.Equal(sizes, []int{1, maxBatch}) {
			t.Errorf("batches of %v", sizes)
		}
	})
}

// Commands that have gathered behind one flight don't wait for it if there may be more flights.
func TestLongQueuesTakeMoreFlights(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		for range 2*maxBatch + 1 {
			s.waiting = append(s.waiting, &parcel[int, int]{
				ctx: t.Context(), commands: []int{1}, answered: make(chan struct{}, 1),
			})
		}
		s.flights = 1
		go s.fly(0)
		synctest.Wait()
		if got := len(srv.received()); got != 3 {
			t.Errorf("%d batches are under way, want 3", got)
		}
	})
}

// A flight for several callers ends when the last of them has left, and not before.
func TestAllLeave(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		fill(t, s)
		ctx, leave := context.WithCancel(t.Context())
		calls := []*call{start(ctx, s, 10), start(ctx, s, 11)}
		last, lastLeaves := context.WithCancel(t.Context())
		calls = append(calls, start(last, s, 12))
		srv.open <- struct{}{}
		synctest.Wait()
		leave()
		synctest.Wait()
		if err := srv.ctxs[maxFlights].Err(); err != nil {
			t.Errorf("%v, while one waits", err)
		}
		lastLeaves()
		synctest.Wait()
		if srv.ctxs[maxFlights].Err() == nil {
			t.Error("it goes on for nobody")
		}
		for _, c := range calls {
			c.mustFail(t, backend.Unknown)
		}
	})
}

// A caller that leaves alone and in time has sent nothing.
func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{open: make(chan struct{})}
		s := New(srv.send, func(commands []int) bool { return commands[0]%2 == 0 })
		fill(t, s)
		ctx, leave := context.WithCancel(t.Context())
		srv.open <- struct{}{}
		synctest.Wait()
		early := start(ctx, s, 10)
		srv.open <- struct{}{}
		synctest.Wait()
		late := start(ctx, s, 11)
		srv.open <- struct{}{}
		synctest.Wait()
		fill(t, s) // the last of them wait
		calls := []*call{start(ctx, s, 12), start(ctx, s, 14)}
		for range 3 {
			srv.open <- struct{}{}
			synctest.Wait()
		}
		leave()
		early.mustFail(t, backend.Retry)
		late.mustFail(t, backend.Unknown)
		for _, c := range calls {
			c.mustFail(t, backend.Unknown) // others would go with them
		}
		close(srv.open)
		s.Settle()
	})
}

// A few that hang don't hold up the others, neither those that wait for them nor those that come
// later. When they land they are as good as any.
func TestSomeHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{open: make(chan struct{})}
		s := New(func(ctx context.Context, commands []int) []int {
			if commands[0] <= maxFlights {
				<-srv.open
			}
			return make([]int, len(commands))
		}, nil)
		hung := fill(t, s)
		begin := time.Now()
		<-start(t.Context(), s, 10).done
		if wait := time.Since(begin); wait > 2*patience {
			t.Errorf("the next was answered after %v", wait)
		}
		begin = time.Now()
		for i := range 100 {
			<-start(t.Context(), s, 11+i).done
		}
		if wait := time.Since(begin); wait != 0 {
			t.Errorf("those after it were answered after %v", wait)
		}
		close(srv.open)
		for _, c := range hung {
			<-c.done
		}
		s.Settle()
		if s.flights != 0 || s.overdue != 0 {
			t.Errorf("%d flights at the end, %d overdue", s.flights, s.overdue)
		}
	})
}

// While everything hangs, flights are started a few at a time.
func TestAllHang(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		for i := range 100 {
			go s.Send(t.Context(), i)
			time.Sleep(patience / 10)
		}
		if got := len(srv.received()); got < 2*maxFlights || got > 12*maxFlights {
			t.Errorf("%d batches are under way after ten times the patience", got)
		}
	})
}

func TestSettle(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		ctx, leave := context.WithCancel(t.Context())
		c := start(ctx, s, 1)
		leave()
		<-c.done
		settled := make(chan struct{})
		go func() {
			s.Settle()
			close(settled)
		}()
		synctest.Wait()
		select {
		case <-settled:
			t.Error("settled while something is under way")
		default:
		}
		srv.open <- struct{}{}
		<-settled
	})
}

// Each caller gets its own answers, whichever others leave.
func TestMany(t *testing.T) {
	srv := &server{open: make(chan struct{})}
	close(srv.open)
	s := New(srv.send, nil)
	var all sync.WaitGroup
	for g := range 64 {
		all.Go(func() {
			for i := range 200 {
				ctx, leave := context.WithCancel(t.Context())
				if i%7 == g%7 {
					go leave()
				}
				commands := slices.Repeat([]int{1000*g + i}, 1+i%3)
				results, err := s.Send(ctx, commands...)
				want := slices.Repeat([]int{-1000*g - i}, len(commands))
				if err == nil && !slices.Equal(results, want) ||
					err != nil && !errors.Is(ctx.Err(), context.Canceled) {
					t.Errorf("%v is answered with %v, %v", commands, results, err)
				}
				leave()
			}
		})
	}
	all.Wait()
	s.Settle()
}

// The room in which batches gather is used again, and keeps nobody's commands alive.
func TestNothingIsKeptOfWhatWasSent(t *testing.T) {
	run(t, func(t *testing.T, srv *server, s *Sender[int, int]) {
		calls := append(fill(t, s), start(t.Context(), s, 10), start(t.Context(), s, 11),
			start(t.Context(), s, 12))
		for range maxFlights + 1 {
			srv.open <- struct{}{}
		}
		for _, c := range calls {
			c.mustBeAnswered(t)
		}
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		room := s.waiting[:cap(s.waiting)]
		if len(room) == 0 {
			t.Fatal("no room is kept for the next batch")
		}
		for _, p := range room {
			if p != nil {
				t.Fatalf("%v is kept", p.commands)
			}
		}
	})
}

// Where there is one flight at a time, callers that come back soon, though not at once, go together
// again.
func TestCallersThatComeBackGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, times = 8, 5
		var sizes []int
		s := New(func(_ context.Context, commands []int) []int {
			time.Sleep(time.Millisecond) // all others ask meanwhile
			sizes = append(sizes, len(commands))
			return commands
		}, nil).Limit(1)
		var all sync.WaitGroup
		all.Go(func() { s.Send(t.Context(), many) }) // the others come while this is under way
		synctest.Wait()
		for i := range many {
			all.Go(func() {
				for range times {
					if _, err := s.Send(t.Context(), i); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(i) * comeback / many) // the caller's work
				}
			})
		}
		all.Wait()
		s.Settle()
		if len(sizes) != 1+times {
			t.Errorf("sent in batches of %v", sizes)
		}
	})
}

// The only flight doesn't wait long for callers that don't come back.
func TestCallersThatDontComeBackKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 8
		s := New(func(_ context.Context, commands []int) []int {
			time.Sleep(time.Millisecond)
			return commands
		}, nil).Limit(1)
		var all sync.WaitGroup
		for i := range many {
			all.Go(func() { s.Send(t.Context(), i) })
		}
		all.Wait()
		asked := time.Now()
		if _, err := s.Send(t.Context(), many); err != nil {
			t.Error(err)
		}
		if took := time.Since(asked); took > comeback+time.Millisecond {
			t.Errorf("answered after %v", took)
		}
		s.Settle()
	})
}

// Flights that were overdue may land at the same time. Each waits for its own callers.
func TestOverdueFlightsLandTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{open: make(chan struct{})}
		s := New(srv.send, nil).Limit(1)
		var calls []*call
		for n := range 3 {
			calls = append(calls, start(t.Context(), s, 2*n), start(t.Context(), s, 2*n+1))
			time.Sleep(patience + time.Millisecond)
		}
		if got := srv.received(); len(got) != 4 {
			t.Fatalf("%v, want the first alone and three flights after it", got)
		}
		close(srv.open)
		for _, c := range calls {
			c.mustBeAnswered(t)
		}
		s.Settle()
	})
}

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &server{open: make(chan struct{})}
		s := New(srv.send, nil).Limit(2)
		calls := []*call{
			start(t.Context(), s, 1), start(t.Context(), s, 2), start(t.Context(), s, 3),
			start(t.Context(), s, 4),
		}
		if got := srv.received(); len(got) != 2 {
			t.Errorf("%v, want two batches", got)
		}
		srv.open <- struct{}{}
		synctest.Wait()
		if got := srv.received(); len(got) != 3 || !slices.Equal(got[2], []int{3, 4}) {
			t.Errorf("%v, want what waited together", got)
		}
		close(srv.open)
		for _, c := range calls {
			c.mustBeAnswered(t)
		}
		s.Settle()
	})
}

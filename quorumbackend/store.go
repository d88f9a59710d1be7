package quorumbackend

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

const (
	roundTrips      = 4                      // how long to wait for a store, in round trips
	leastPatience   = 20 * time.Millisecond  // minimum wait for a store if another can replace it
	longestPatience = time.Second            // maximum wait, unless most stores are as slow
	unknownTrip     = 25 * time.Millisecond  // assumed for a store that hasn't answered yet
	downFor         = time.Second            // how long a store counts as down after a failure
	releasePatience = 9                      // extra wait in a release, in multiples of patience
	longestMore     = 500 * time.Millisecond // maximum extra wait in a release
	grace           = time.Second            // how long a request is allowed to outlast its round
)

// A store is one of the stores that vote, as seen by one session.
type store struct {
	number  int
	session backend.Session
	batch   backend.BatchRenewer // nil if the store can't renew batches
	tells   backend.Notifier     // nil if the store can't notify
	settle  func()               // waits for work that its steps left behind; may be nil
	prompt  bool                 // the store's steps never wait
	least   time.Duration        // the minimum wait for the store
	began   time.Time
	trip    atomic.Int64 // smoothed response time; 0: no answer yet
	// silence is how long the session pauses before it sends the store another release for a debt.
	// It is 0 unless the store left the last one unanswered. The session's mutex guards silence and
	// resume.
	silence time.Duration
	resume  time.Time    // no debt is paid at the store before this time
	down    atomic.Int64 // when the store stops being down, in ns after began; 0 if it isn't down
	// repairs holds the repairs that are due. The session's mutex guards repairs and menders.
	repairs []repair
	menders int // the number of goroutines that make repairs
}

func newStore(number int, b backend.Backend, least time.Duration, began time.Time) *store {
	session, can := backend.Open(b)
	return &store{
		number: number, session: session, least: least, began: began,
		batch: can.BatchRenewer, tells: can.Notifier, settle: can.Settle,
		prompt: can.Steps == backend.StepsNeverWait,
	}
}

// usual returns the store's usual round-trip time, or a guess if it hasn't answered yet.
func (st *store) usual() time.Duration {
	trip := time.Duration(st.trip.Load())
	if trip == 0 && !st.prompt {
		return unknownTrip
	}
	return trip
}

// patience returns how long to wait for a store if another store can replace it. Each late answer
// makes the next wait longer, so there is a limit. Usually it is a second. But if the slowest store
// of the fastest majority needs a longer wait, that wait is the limit.
func (s *session) patience(st *store) time.Duration {
	trips := make([]time.Duration, 0, 9)
	for _, st := range s.stores {
		trips = append(trips, st.usual())
	}
	slices.Sort(trips)
	limit := max(longestPatience, roundTrips*trips[s.need-1])
	return max(st.least, min(roundTrips*st.usual(), limit))
}

// answered records that the store answered and how long that took.
func (st *store) answered(took time.Duration) {
	trip := st.trip.Load()
	switch {
	case trip == 0:
		trip = int64(took)
	case int64(took) > trip: // patience grows quickly if a store slows down
		trip += (int64(took) - trip) / 2
	default:
		trip += (int64(took) - trip) / 8
	}
	st.trip.Store(max(trip, 1))
	if st.down.Load() != 0 {
		st.down.Store(0)
	}
}

// failed records that the store failed or didn't answer in time. It returns false if the store was
// already marked as down.
func (st *store) failed() bool {
	news := !st.isDown()
	st.down.Store(int64(time.Since(st.began) + downFor))
	return news
}

func (st *store) isDown() bool {
	down := st.down.Load()
	return down != 0 && int64(time.Since(st.began)) < down
}

// A set is a bit mask of stores.
type set uint64

func (x set) has(st *store) bool { return x&(1<<st.number) != 0 }
func (x *set) add(st *store)     { *x |= 1 << st.number }
func (x *set) remove(st *store)  { *x &^= 1 << st.number }

// A reply is a store's answer to a request.
type reply[Res any] struct {
	from *store
	res  Res
	err  error
}

// A round carries out one step in several stores. A request that might block runs in a goroutine of
// its own, so that the round can abandon a store that hangs. The outcome in that store is then
// unknown.
type round[Res any] struct {
	s       *session
	caller  context.Context
	ctx     context.Context // context of the requests
	stop    func() bool     // once called, ctx isn't canceled when caller ends; may be nil
	cancel  context.CancelFunc
	do      func(context.Context, *store) (Res, error)
	replies chan reply[Res]
	timer   *time.Timer

	out      set // stores without an answer
	waiting  int // the number of stores in out
	sent     time.Time
	hopeful  set           // stores that weren't down when they were asked
	trusted  set           // stores to wait for even if they are down
	longest  time.Duration // the longest patience with a hopeful store
	failures []failure
	partly   bool // a store has carried out the step
}

// A failure is the error of one store in a step.
type failure struct {
	at  *store
	err error
}

// newRound begins a round, which the caller must end with leave. The requests are canceled when
// base or the caller's context, ctx, ends. The parameter base is the session's context, or, if the
// requests are allowed after Close, a context that never ends.
func newRound[Res any](
	s *session, base, ctx context.Context, do func(context.Context, *store) (Res, error),
) *round[Res] {
	r := &round[Res]{
		s: s, caller: ctx, ctx: ctx, do: do, replies: make(chan reply[Res], len(s.stores)),
	}
	if s.prompt {
		return r
	}
	r.ctx, r.cancel = context.WithCancel(request{base, ctx})
	if ctx.Done() != nil {
		r.stop = context.AfterFunc(ctx, r.cancel)
	}
	return r
}

// A request is a session's context with the values of a caller's context. It isn't canceled with
// the caller's context, so that a store can continue its work after the caller's step has ended.
type request struct {
	context.Context
	caller context.Context
}

func (r request) Value(key any) any {
	if v := r.Context.Value(key); v != nil {
		return v
	}
	return r.caller.Value(key)
}

// ask sends the request to stores.
func (r *round[Res]) ask(stores ...*store) {
	for _, st := range stores {
		r.out.add(st)
		r.waiting++
		if !st.isDown() || r.trusted.has(st) {
			r.hopeful.add(st)
			r.longest = max(r.longest, r.s.patience(st))
		}
	}
	if !r.s.prompt {
		r.sent = time.Now()
	}
	for _, st := range stores {
		if st.prompt {
			r.call(st)
			continue
		}
		r.s.background(func() { r.call(st) })
	}
}

// call makes one request.
func (r *round[Res]) call(st *store) {
	if st.prompt {
		res, err := r.do(r.ctx, st)
		r.replies <- reply[Res]{st, res, err}
		return
	}
	began := time.Now()
	res, err := r.do(r.ctx, st)
	switch {
	case err == nil, backend.KindOf(err) == backend.Refused:
		st.answered(time.Since(began))
	case r.ctx.Err() == nil:
		r.s.failed(st)
	}
	r.replies <- reply[Res]{st, res, err}
}

// deadline returns when to stop waiting for answers that the round can do without. It allows no
// time for stores that are down.
func (r *round[Res]) deadline() time.Time {
	if r.out&r.hopeful == 0 {
		return r.sent
	}
	return r.sent.Add(r.longest)
}

// last returns when to stop waiting for an answer that is needed for a majority, or the zero time
// if there is no limit. There is a limit once a store has failed, since the round might hold votes
// that keep others out.
func (r *round[Res]) last() time.Time {
	if len(r.failures) == 0 {
		return time.Time{}
	}
	return r.sent.Add(max(grace, r.longest))
}

// longestOut returns the longest wait for a store that is up, or 0 if all such stores have
// answered.
func (r *round[Res]) longestOut() time.Duration {
	if r.out&r.hopeful == 0 {
		return 0
	}
	return r.longest
}

// next returns the next answer. It returns false if there is none before the deadline or before the
// caller's context ends, or if all stores have answered. A zero deadline means no deadline.
func (r *round[Res]) next(deadline time.Time) (rep reply[Res], ok bool) {
	if r.waiting == 0 {
		return rep, false
	}
	select {
	case rep = <-r.replies:
	default:
		if rep, ok = r.wait(deadline); !ok {
			return rep, false
		}
	}
	r.out.remove(rep.from)
	r.waiting--
	if rep.err != nil {
		r.failures = append(r.failures, failure{rep.from, rep.err})
	}
	return rep, true
}

func (r *round[Res]) wait(deadline time.Time) (rep reply[Res], ok bool) {
	var over <-chan time.Time
	if !deadline.IsZero() {
		left := time.Until(deadline)
		if left <= 0 {
			return rep, false
		}
		if r.timer == nil {
			r.timer = time.NewTimer(left)
		} else {
			r.timer.Reset(left)
		}
		over = r.timer.C
	}
	select {
	case rep = <-r.replies:
		return rep, true
	case <-over:
	case <-r.caller.Done():
	}
	return rep, false
}

// over reports whether the caller's context has ended.
func (r *round[Res]) over() bool { return r.caller.Err() != nil }

// slow records that the remaining stores didn't answer in time.
func (r *round[Res]) slow() {
	for _, st := range r.s.stores {
		if r.out.has(st) {
			r.s.failed(st)
		}
	}
	r.hopeful &^= r.out
}

// leave ends the round. Requests under way may continue for a short time, so that the session
// learns how slow a store has become.
func (r *round[Res]) leave() {
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.cancel == nil {
		return
	}
	if r.stop != nil {
		r.stop()
	}
	if r.waiting == 0 || r.over() {
		r.cancel()
		return
	}
	time.AfterFunc(grace, r.cancel)
}

// failure returns the error of a step that got too few answers.
func (r *round[Res]) failure() error {
	for _, st := range r.s.stores {
		if r.out.has(st) {
			r.failures = append(r.failures, failure{st, errUnanswered})
		}
	}
	return failed(r.failures, len(r.s.stores), r.s.need, r.partly)
}

// failed returns the error of a step that was carried out by too few stores. The parameter need is
// the number that the step requires, and n is the number of all stores. If partly is set, some
// stores carried the step out, and the error's kind is Unknown instead of Retry.
func failed(failures []failure, n, need int, partly bool) error {
	slices.SortFunc(failures, func(x, y failure) int { return x.at.number - y.at.number })
	kind, refused := backend.Retry, 0
	if partly {
		kind = backend.Unknown
	}
	errs := make([]error, len(failures))
	texts := make([]string, len(failures))
	for i, f := range failures {
		errs[i], texts[i] = f.err, fmt.Sprintf("store %d: %v", f.at.number+1, f.err)
		switch backend.KindOf(f.err) {
		case backend.Unknown:
			kind = backend.Unknown
		case backend.Refused:
			refused++
		}
	}
	if refused > n-need {
		kind = backend.Refused
	}
	text := fmt.Sprintf("quorumbackend: %d of %d stores failed: %s", len(failures), n,
		strings.Join(texts, "; "))
	return &backend.Error{Kind: kind, Err: &errorOfMany{text, errs}}
}

// errorOfMany wraps several errors and has its own text.
type errorOfMany struct {
	text string
	errs []error
}

func (e *errorOfMany) Error() string   { return e.text }
func (e *errorOfMany) Unwrap() []error { return e.errs }

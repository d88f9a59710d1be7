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
	roundTrips      = 4                      // and as many of its round trips
	leastPatience   = 20 * time.Millisecond  // with a store where another may do as well
	unknownTrip     = 25 * time.Millisecond  // of a store that hasn't answered yet
	downFor         = time.Second            // a store that didn't answer is left for last
	releasePatience = 9                      // times as much more for a release
	longestMore     = 500 * time.Millisecond // at the most
	grace           = time.Second            // after which what nobody waits for is given up
)

// A store is one of those that vote, as a session sees it.
type store struct {
	number  int
	session backend.Session
	batch   backend.BatchRenewer // nil if it has none
	tells   backend.Notifier     // nil if it can't
	settle  func()               // waits for what its steps left; nil if there is nothing
	prompt  bool                 // its steps never wait
	least   time.Duration        // patience with it
	began   time.Time
	trip    atomic.Int64  // how long it takes to answer, smoothed; 0 if it never has
	silence time.Duration // of one that didn't answer the last debt; guarded by the session's mutex, as is resume
	resume  time.Time     // no debt is paid here before
	down    atomic.Int64  // until when it is left for last, counted from began
	repairs []repair      // what it is to be asked for again; guarded by the session's mutex, as is menders
	menders int           // goroutines that do
}

func newStore(number int, b backend.Backend, least time.Duration, began time.Time) *store {
	session, can := backend.Open(b)
	return &store{
		number: number, session: session, least: least, began: began,
		batch: can.BatchRenewer, tells: can.Notifier, settle: can.Settle, prompt: can.Steps == backend.StepsNeverWait,
	}
}

// patience returns for how long the store is waited for where another may do as well.
func (st *store) patience() time.Duration {
	trip := time.Duration(st.trip.Load())
	if trip == 0 {
		trip = unknownTrip
	}
	return max(st.least, roundTrips*trip)
}

// answered notes that the store has answered, and in what time.
func (st *store) answered(took time.Duration) {
	trip := st.trip.Load()
	switch {
	case trip == 0:
		trip = int64(took)
	case int64(took) > trip: // one that slows down is to be waited for soon
		trip += (int64(took) - trip) / 2
	default:
		trip += (int64(took) - trip) / 8
	}
	st.trip.Store(max(trip, 1))
	if st.down.Load() != 0 {
		st.down.Store(0)
	}
}

// failed notes that the store has failed, or was waited for in vain, and says whether that is news.
func (st *store) failed() bool {
	news := !st.isDown()
	st.down.Store(int64(time.Since(st.began) + downFor))
	return news
}

func (st *store) isDown() bool {
	down := st.down.Load()
	return down != 0 && int64(time.Since(st.began)) < down
}

// A set is some of the stores.
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

// A round is one step in several stores. Where steps wait each has a goroutine, so that a store that hangs can be
// left: what it does then is not known.
type round[Res any] struct {
	s       *session
	caller  context.Context
	ctx     context.Context // of the requests
	stop    func() bool     // ends the link between the two; may be nil
	cancel  context.CancelFunc
	do      func(context.Context, *store) (Res, error)
	replies chan reply[Res]
	timer   *time.Timer

	out      set // whose answers aren't there yet
	waiting  int // how many these are
	sent     time.Time
	hopeful  set           // of those, who weren't down when they were asked
	trusted  set           // who are waited for as if they weren't
	longest  time.Duration // patience with these
	failures []failure
	partly   bool // a store has carried it out
}

// A failure is that of one store in a step.
type failure struct {
	at  *store
	err error
}

// newRound begins a round. Whoever does must leave it. The requests end with the first of the two contexts: that of the session or, as there are
// releases after Close, one that doesn't end; and that of the caller.
func newRound[Res any](s *session, base, ctx context.Context, do func(context.Context, *store) (Res, error)) *round[Res] {
	r := &round[Res]{s: s, caller: ctx, ctx: ctx, do: do, replies: make(chan reply[Res], len(s.stores))}
	if s.prompt {
		return r
	}
	r.ctx, r.cancel = context.WithCancel(request{base, ctx})
	if ctx.Done() != nil {
		r.stop = context.AfterFunc(ctx, r.cancel)
	}
	return r
}

// request is the context of a session, with the values of a caller's: what a store does for one may go on when the step is over.
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

// ask sends the request to these stores.
func (r *round[Res]) ask(stores ...*store) {
	for _, st := range stores {
		r.out.add(st)
		r.waiting++
		if !st.isDown() || r.trusted.has(st) {
			r.hopeful.add(st)
			r.longest = max(r.longest, st.patience())
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

// call is one request.
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

// deadline returns until when those are waited for that were asked last, if it can be done without them: those that didn't
// answer lately not at all.
func (r *round[Res]) deadline() time.Time {
	if r.out&r.hopeful == 0 {
		return r.sent
	}
	return r.sent.Add(r.longest)
}

// last returns until when an answer is waited for without which there is no majority: without end,
// but for where another store has failed. Whoever waits may have votes that keep others out.
func (r *round[Res]) last() time.Time {
	if len(r.failures) == 0 {
		return time.Time{}
	}
	return r.sent.Add(max(grace, r.longest))
}

// longestOut returns the patience with those that are waited for, if there are any.
func (r *round[Res]) longestOut() time.Duration {
	if r.out&r.hopeful == 0 {
		return 0
	}
	return r.longest
}

// next returns the next answer. It returns false if there is none until a deadline, which may be zero for none, or until the caller's context
// has ended, or if there is none to come.
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

// over says whether the caller's context has ended.
func (r *round[Res]) over() bool { return r.caller.Err() != nil }

// slow notes that those who haven't answered were waited for in vain.
func (r *round[Res]) slow() {
	for _, st := range r.s.stores {
		if r.out.has(st) {
			r.s.failed(st)
		}
	}
	r.hopeful &^= r.out
}

// leave ends the round. What is under way may go on for a little: a store that is slower than it was is then known to be.
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

// failure returns the error of a step for which there weren't enough answers.
func (r *round[Res]) failure() error {
	for _, st := range r.s.stores {
		if r.out.has(st) {
			r.failures = append(r.failures, failure{st, errUnanswered})
		}
	}
	return failed(r.failures, len(r.s.stores), r.s.need, r.partly)
}

// failed returns the error of a step that has failed at so many of n stores that the others don't make a majority. It may not be said
// that it wasn't carried out if it was in part.
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
	text := fmt.Sprintf("quorumbackend: %d of %d stores failed: %s", len(failures), n, strings.Join(texts, "; "))
	return &backend.Error{Kind: kind, Err: &errorOfMany{text, errs}}
}

// errorOfMany is an error with a text of its own that is each of several.
type errorOfMany struct {
	text string
	errs []error
}

func (e *errorOfMany) Error() string   { return e.text }
func (e *errorOfMany) Unwrap() []error { return e.errs }

package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A stepKind is the kind of a step. Re-entries are a separate kind.
type stepKind uint8

const (
	anyStep stepKind = iota
	acquireStep
	reentryStep
	releaseStep
	renewStep
	forceStep
	lookStep
	subscribeStep
	keepStep
	inspectStep
	listStep
	grantStep // sent by the store
)

func (k stepKind) String() string {
	return [...]string{"any", "acquire", "re-entry", "release", "renew", "force-release", "look",
		"subscribe", "keep places", "inspect", "list", "grant"}[k]
}

// A sentStep is a step that a client sent, or a grant that the store sent to the client.
type sentStep struct {
	kind    stepKind
	name    string
	owner   string
	owners  []string      // the owners, for a step about several owners
	lease   time.Duration // for KeepPlaces: how long the places last
	place   time.Duration
	permits int
	limit   int
	at      time.Time

	// The outcome of the step, guarded by faultyBackend.mu.
	carriedOut bool
	answered   bool
	err        error
}

// A which is a filter that matches steps by their fields. A zero field matches any value, except
// that a zero kind doesn't match grants.
type which struct {
	kind  stepKind
	name  string
	owner string
	skip  int // number of steps to let pass first
}

func (w which) matches(s *sentStep) bool {
	return (w.kind == s.kind || w.kind == anyStep && s.kind != grantStep) &&
		(w.name == "" || w.name == s.name) &&
		(w.owner == "" || w.owner == s.owner || slices.Contains(s.owners, w.owner))
}

// A fault acts on a step on its way to the store. It decides whether and when the step is carried
// out, and returns the error that the client receives.
type fault func(x *transit) error

// A transit is a step on its way to the store.
type transit struct {
	f        *faultyBackend
	step     *sentStep
	ctx      context.Context
	carryOut func(context.Context) error
}

var errFault = errors.New("a fault that the test made")

func failure(kind backend.ErrorKind) error { return &backend.Error{Kind: kind, Err: errFault} }

// replyLost is a fault that carries the step out, but loses the reply.
func replyLost(x *transit) error {
	x.carryOut(x.ctx)
	return failure(backend.Unknown)
}

// requestLost is a fault that doesn't carry the step out. Its error leaves open whether the step
// was carried out.
func requestLost(x *transit) error { return failure(backend.Unknown) }

// notSent is a fault that doesn't carry the step out. Its error says that the step wasn't carried
// out.
func notSent(x *transit) error { return failure(backend.Retry) }

// refused is a fault that doesn't carry the step out. Its error says that trying again wouldn't
// help.
func refused(x *transit) error { return failure(backend.Refused) }

// hangs returns a fault that delays the request until open is closed. Until then the client gets no
// answer, even if its context ends.
func hangs(open <-chan struct{}) fault {
	return func(x *transit) error {
		select {
		case <-open:
			return x.carryOut(context.WithoutCancel(x.ctx))
		case <-x.f.ended:
			return failure(backend.Unknown)
		}
	}
}

// replyHangs returns a fault that carries the step out at once, and delays the reply until open is
// closed.
func replyHangs(open <-chan struct{}) fault {
	return func(x *transit) error {
		err := x.carryOut(context.WithoutCancel(x.ctx))
		select {
		case <-open:
			return err
		case <-x.f.ended:
			return failure(backend.Unknown)
		}
	}
}

// hangsPolitely doesn't carry the step out, and returns when the caller's context ends.
func hangsPolitely(x *transit) error {
	select {
	case <-x.ctx.Done():
	case <-x.f.ended:
	}
	return failure(backend.Unknown)
}

// late returns a fault that returns an error at once, and carries the request out when open is
// closed. It never carries out a subscription, because nothing would close that subscription.
func late(open <-chan struct{}) fault {
	return func(x *transit) error {
		if x.step.kind == subscribeStep {
			return failure(backend.Unknown)
		}
		x.f.late.Go(func() {
			select {
			case <-open:
				x.carryOut(context.WithoutCancel(x.ctx))
			case <-x.f.ended:
			}
		})
		return failure(backend.Unknown)
	}
}

// twice carries the step out twice.
func twice(x *transit) error {
	return errors.Join(x.carryOut(x.ctx), x.carryOut(x.ctx))
}

// unsure removes the lease from a grant, as a store does if it can't tell whether the grant is
// still in force.
func unsure(x *transit) error {
	x.f.mu.Lock()
	x.step.lease = 0
	x.f.mu.Unlock()
	return x.carryOut(x.ctx)
}

// before returns a fault that first calls a function, which changes the store, and then carries the
// step out.
func before(other func()) fault {
	return func(x *transit) error {
		other()
		return x.carryOut(x.ctx)
	}
}

// after returns a fault that first carries the step out, and then calls a function, which changes
// the store before the client receives the answer.
func after(other func()) fault {
	return func(x *transit) error {
		err := x.carryOut(x.ctx)
		other()
		return err
	}
}

// A rule applies a fault to the steps that it selects.
type rule struct {
	f     *faultyBackend
	which which
	what  fault
	left  int // how many more steps the fault applies to; if negative, there is no limit
	hit   int
}

// off disables a rule.
func (r *rule) off() {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	r.left = 0
}

// hits returns the number of steps to which the rule was applied.
func (r *rule) hits() int {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	return r.hit
}

// faultyBackend passes a client's steps on to a backend, records them, and injects faults. It
// offers the store's capabilities, except hidden ones. It also checks that the client keeps its
// side of the contract in package backend.
type faultyBackend struct {
	inner       backend.Backend
	opened      backend.Session // the session that was opened last; its steps bypass the faults
	hideNotify  bool
	hideBatches bool
	// maximum number of locks on a page of List; if 0, as many as the client asks for
	page  int
	ended chan struct{} // closed when the case ends, which ends all faults that hang
	late  sync.WaitGroup

	mu      sync.Mutex
	rules   []*rule
	sent    []*sentStep
	batches []int // the sizes of batches of renewals
	deaf    bool  // drops wake-ups and grants
	subs    map[string]int
	given   map[string]bool // owners for which a release was sent
	permits map[string]int  // number of permits that each owner asked for
	// the case has no re-entries, so no owner may acquire a lock again after its release
	plain    bool
	closed   bool
	breaches []string
}

func newFaults(inner backend.Backend) *faultyBackend {
	return &faultyBackend{
		inner: inner,
		ended: make(chan struct{}),
		subs:  make(map[string]int),
		given: make(map[string]bool),

		permits: make(map[string]int),
	}
}

// on sets a fault for all later steps that match w, except those to which an earlier rule applies.
func (f *faultyBackend) on(w which, what fault) *rule { return f.next(-1, w, what) }

// next is like on, but applies the fault only n times. If n is negative, there is no limit.
func (f *faultyBackend) next(n int, w which, what fault) *rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &rule{f: f, which: w, what: what, left: n}
	f.rules = append(f.rules, r)
	return r
}

// steps returns the steps that were sent and match w.
func (f *faultyBackend) steps(w which) []sentStep {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []sentStep
	for _, s := range f.sent {
		if w.matches(s) {
			found = append(found, *s)
		}
	}
	return found
}

// count returns the number of steps that were sent and match w.
func (f *faultyBackend) count(w which) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, s := range f.sent {
		if w.matches(s) {
			n++
		}
	}
	return n
}

// underWay returns the number of steps that match w and haven't been answered yet.
func (f *faultyBackend) underWay(w which) (n int) {
	for _, s := range f.steps(w) {
		if !s.answered {
			n++
		}
	}
	return n
}

// kinds returns the kinds of all steps that were sent, in order.
func (f *faultyBackend) kinds() []stepKind {
	var kinds []stepKind
	for _, s := range f.steps(which{}) {
		kinds = append(kinds, s.kind)
	}
	return kinds
}

// owner returns the owner in the last request to acquire the lock with the given name.
func (f *faultyBackend) owner(name string) string {
	steps := f.steps(which{kind: acquireStep, name: name})
	if len(steps) == 0 {
		return ""
	}
	return steps[len(steps)-1].owner
}

// dies makes all later steps hang, and drops notifications and grants, as if the client's process
// had died.
func (f *faultyBackend) dies() {
	f.on(which{}, hangsPolitely)
	f.swallow(true)
}

// swallow sets whether notifications and grants are dropped.
func (f *faultyBackend) swallow(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deaf = on
}

// subscriptions returns the number of open subscriptions to a name.
func (f *faultyBackend) subscriptions(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.subs[name]
}

// batchSizes returns the sizes of the batches of renewals.
func (f *faultyBackend) batchSizes() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]int(nil), f.batches...)
}

// end removes all rules, and ends the faults that are delaying steps.
func (f *faultyBackend) end() {
	f.mu.Lock()
	over := f.rules
	f.rules = nil
	for _, r := range over {
		r.left = 0
	}
	f.mu.Unlock()
	close(f.ended)
}

// broken returns the client's violations of the contract.
func (f *faultyBackend) broken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.breaches...)
}

func (f *faultyBackend) breach(format string, args ...any) {
	if len(f.breaches) < 10 {
		f.breaches = append(f.breaches, fmt.Sprintf(format, args...))
	}
}

// begin records a step and returns the fault to apply to it, or nil.
func (f *faultyBackend) begin(ctx context.Context, s *sentStep) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.at = time.Now()
	f.sent = append(f.sent, s)
	f.check(ctx, s)
	if s.kind == releaseStep {
		f.given[s.owner] = true
	}
	for _, r := range f.rules {
		if r.left == 0 || !r.which.matches(s) {
			continue
		}
		if r.which.skip > 0 {
			r.which.skip--
			continue
		}
		r.left--
		r.hit++
		return r.what
	}
	return nil
}

// check records a breach of the contract if the client must not send this step. f.mu is held.
func (f *faultyBackend) check(ctx context.Context, s *sentStep) {
	if s.name == "" && s.kind != listStep {
		f.breach("%v without a name", s.kind)
	}
	switch s.kind {
	case acquireStep, reentryStep, releaseStep, renewStep:
		limits := f.inner.Limits()
		step := max(limits.LeaseStep, time.Millisecond)
		if s.owner == "" {
			f.breach("%v without an owner", s.kind)
		}
		if s.lease <= 0 || s.lease < limits.MinLease || s.lease%step != 0 {
			f.breach("%v with a lease of %v, which the store's limits %+v don't allow", s.kind,
				s.lease, limits)
		}
	}
	switch {
	case s.kind == keepStep && (len(s.owners) == 0 || s.lease <= 0):
		f.breach("%v of %q for %v", s.kind, s.owners, s.lease)
	case s.kind == acquireStep && s.permits > 0:
		f.permits[s.owner] = s.permits
	// a release is allowed before the acquisition, which may be sent late (see below)
	case s.kind == releaseStep && f.permits[s.owner] == 0:
	case (s.kind == releaseStep || s.kind == renewStep) && s.permits != f.permits[s.owner]:
		f.breach("%v of %d permits by %q, which has acquired %d", s.kind, s.permits, s.owner,
			f.permits[s.owner])
	}
	// An acquisition whose context has ended may follow the release, because its request might be
	// sent after the call has returned.
	if s.kind == acquireStep && f.plain && f.given[s.owner] && ctx.Err() == nil {
		f.breach("%s was released, and is used again", s.owner)
	}
	if f.closed && s.kind != releaseStep && s.kind != grantStep && ctx.Err() == nil {
		f.breach("%v after Close", s.kind)
	}
}

// through sends a step to the store, or applies the fault that was set for it.
func through[Req, Res any](
	ctx context.Context, f *faultyBackend, s *sentStep, req Req, do func(
		context.Context, Req,
	) (Res, error),
) (Res, error) {
	var res Res
	carryOut := func(ctx context.Context) error {
		r, err := do(ctx, req)
		f.mu.Lock()
		defer f.mu.Unlock()
		res = r
		s.carriedOut = err == nil
		return err
	}
	what := f.begin(ctx, s)
	var err error
	if what == nil {
		err = carryOut(ctx)
	} else {
		err = what(&transit{f, s, ctx, carryOut})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.answered, s.err = true, err
	return res, err
}

// Open implements [backend.Backend].
func (f *faultyBackend) Open() backend.Session {
	inner, can := backend.Open(f.inner)
	f.opened = inner
	s := &faultySession{f: f, inner: inner, bare: can, can: can}
	if can.Notifier != nil {
		s.can.Notifier = faultyNotifier{f, can.Notifier}
	}
	if can.BatchRenewer != nil {
		s.can.BatchRenewer = s
	}
	if can.Batcher != nil {
		s.can.Batcher = s
	}
	if can.Inspector != nil {
		s.can.Inspector = s
	}
	if can.Lister != nil {
		s.can.Lister = s
	}
	if can.Liner != nil {
		s.can.Liner = s
	}
	if f.hideNotify {
		s.can.Notifier = nil
	}
	if f.hideBatches {
		s.can.BatchRenewer, s.can.Batcher = nil, nil
	}
	s.can.Steps = backend.StepsMayHang // because faults can make any step hang
	return s
}

// Limits implements [backend.Backend].
func (f *faultyBackend) Limits() backend.Limits { return f.inner.Limits() }

// A faultySession is a session of a faultyBackend. It implements most capabilities, but reports
// only those that the store has.
type faultySession struct {
	f         *faultyBackend
	inner     backend.Session
	bare, can backend.Capabilities // capabilities of inner, and of this session
}

// Capabilities implements [backend.Capable].
func (s *faultySession) Capabilities() backend.Capabilities { return s.can }

func (s *faultySession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return through(ctx, s.f, acquisition(req), req, s.inner.Acquire)
}

func acquisition(req backend.AcquireRequest) *sentStep {
	kind := acquireStep
	if req.Reentry {
		kind = reentryStep
	}
	return &sentStep{
		kind: kind, name: req.Name, owner: req.Owner, lease: req.Lease,
		place: req.Place, permits: req.Permits, limit: req.Limit,
	}
}

func (s *faultySession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return through(ctx, s.f, release(req), req, s.inner.Release)
}

func release(req backend.ReleaseRequest) *sentStep {
	return &sentStep{
		kind: releaseStep, name: req.Name, owner: req.Owner, lease: req.Lease, permits: req.Permits,
	}
}

func (s *faultySession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return through(ctx, s.f, renewal(req), req, s.inner.Renew)
}

func renewal(req backend.RenewRequest) *sentStep {
	return &sentStep{
		kind: renewStep, name: req.Name, owner: req.Owner, lease: req.Lease, permits: req.Permits,
	}
}

func (s *faultySession) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	return through(ctx, s.f, &sentStep{kind: forceStep, name: req.Name}, req, s.inner.ForceRelease)
}

func (s *faultySession) Look(
	ctx context.Context, req backend.LookRequest,
) (backend.LookResult, error) {
	step := &sentStep{
		kind: lookStep, name: req.Name, owner: req.Owner, permits: req.Permits, limit: req.Limit,
	}
	return through(ctx, s.f, step, req, s.inner.Look)
}

// KeepPlaces implements [backend.Liner].
func (s *faultySession) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (backend.PlacesResult, error) {
	step := &sentStep{
		kind: keepStep, name: req.Name, owners: slices.Clone(req.Owners), lease: req.Place,
	}
	return through(ctx, s.f, step, req, s.bare.Liner.KeepPlaces)
}

// Inspect implements [backend.Inspector].
func (s *faultySession) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	return through(ctx, s.f, &sentStep{kind: inspectStep, name: req.Name}, req,
		s.bare.Inspector.Inspect)
}

// List implements [backend.Lister].
func (s *faultySession) List(
	ctx context.Context, req backend.ListRequest,
) (backend.ListResult, error) {
	if s.f.page > 0 {
		req.Limit = min(req.Limit, s.f.page)
	}
	return through(ctx, s.f, &sentStep{kind: listStep}, req, s.bare.Lister.List)
}

func (s *faultySession) Close() error {
	s.f.mu.Lock()
	if s.f.closed {
		s.f.breach("Close is called twice")
	}
	s.f.closed = true
	s.f.mu.Unlock()
	return s.inner.Close()
}

type faultyNotifier struct {
	f     *faultyBackend
	inner backend.Notifier
}

func (n faultyNotifier) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	f := n.f
	wake := req.Wake
	req.Wake = func(w backend.Wakeup) {
		f.mu.Lock()
		deaf := f.deaf
		f.mu.Unlock()
		if !deaf {
			wake(w)
		}
	}
	if granted := req.Granted; granted != nil {
		req.Granted = func(g backend.Grant) { f.grant(req.Name, g, granted) }
	}
	sub, err := through(ctx, f, &sentStep{kind: subscribeStep, name: req.Name}, req,
		n.inner.Subscribe)
	if err != nil {
		if sub != nil { // the reply is lost, but the subscription is open
			sub.Close()
		}
		return nil, err
	}
	f.subscribed(req.Name, +1)
	return &faultySubscription{f, req.Name, sub}, nil
}

// grant passes a grant on to the client, or applies the fault that was set for it. A fault that
// hangs blocks neither the store nor other grants.
func (f *faultyBackend) grant(name string, g backend.Grant, granted func(backend.Grant)) {
	s := &sentStep{kind: grantStep, name: name, owner: g.Owner, lease: g.Lease}
	carryOut := func(context.Context) error {
		f.mu.Lock()
		g.Lease, s.carriedOut = s.lease, true
		f.mu.Unlock()
		granted(g)
		return nil
	}
	what := f.begin(context.Background(), s)
	f.mu.Lock()
	deaf := f.deaf
	f.mu.Unlock()
	switch {
	case deaf:
	case what == nil:
		_ = carryOut(context.Background())
	default:
		f.late.Go(func() { _ = what(&transit{f, s, context.Background(), carryOut}) })
	}
}

func (f *faultyBackend) subscribed(name string, change int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.subs[name] += change; f.subs[name] == 0 {
		delete(f.subs, name)
	}
}

type faultySubscription struct {
	f     *faultyBackend
	name  string
	inner backend.Subscription
}

func (s *faultySubscription) Close() {
	s.inner.Close()
	s.f.subscribed(s.name, -1)
}

// RenewBatch sends the requests to which no fault applies in one batch, and the others one by one.
func (s *faultySession) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	s.f.mu.Lock()
	s.f.batches = append(s.f.batches, len(reqs))
	s.f.mu.Unlock()
	throughTogether(ctx, s.f, reqs, renewal, s.inner.Renew, s.bare.BatchRenewer.RenewBatch, answer)
}

// AcquireBatch and ReleaseBatch apply faults as RenewBatch does.
func (s *faultySession) AcquireBatch(
	ctx context.Context, reqs []backend.AcquireRequest, answer func(
		int, backend.AcquireResult, error,
	),
) {
	throughTogether(ctx, s.f, reqs, acquisition, s.inner.Acquire, s.bare.Batcher.AcquireBatch,
		answer)
}

func (s *faultySession) ReleaseBatch(
	ctx context.Context, reqs []backend.ReleaseRequest, answer func(
		int, backend.ReleaseResult, error,
	),
) {
	throughTogether(ctx, s.f, reqs, release, s.inner.Release, s.bare.Batcher.ReleaseBatch, answer)
}

// throughTogether sends the steps to which no fault applies in one batch, and the others one by
// one.
func throughTogether[Req, Res any](
	ctx context.Context, f *faultyBackend, reqs []Req, noted func(Req) *sentStep,
	one func(context.Context, Req) (Res, error), batch func(
		context.Context, []Req, func(int, Res, error),
	), answer func(int, Res, error),
) {
	var good []Req
	var steps []*sentStep
	var place []int
	var others sync.WaitGroup
	for i, req := range reqs {
		s := noted(req)
		what := f.begin(ctx, s)
		if what == nil {
			good, steps, place = append(good, req), append(steps, s), append(place, i)
			continue
		}
		others.Go(func() {
			var res Res
			err := what(&transit{f, s, ctx, func(ctx context.Context) error {
				got, err := one(ctx, req)
				f.mu.Lock()
				defer f.mu.Unlock()
				res, s.carriedOut = got, err == nil
				return err
			}})
			f.mu.Lock()
			got := res
			s.answered, s.err = true, err
			f.mu.Unlock()
			answer(i, got, err)
		})
	}
	if len(good) > 0 {
		batch(ctx, good, func(i int, res Res, err error) {
			f.mu.Lock()
			steps[i].carriedOut, steps[i].answered, steps[i].err = err == nil, true, err
			f.mu.Unlock()
			answer(place[i], res, err)
		})
	}
	others.Wait()
}

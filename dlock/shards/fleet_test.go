package shards

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// A network is a store a millisecond away, whose faults are called.
type network struct {
	mem      *membackend.Backend
	down     atomic.Bool
	deaf     atomic.Bool // nobody hears the bell
	requests atomic.Int64
}

// A link is how one replica reaches the store.
type link struct {
	*network
	cut  atomic.Bool // requests hang
	dead atomic.Bool // and the replica: nothing is sent any more
}

func (l *link) Limits() backend.Limits { return l.mem.Limits() }
func (l *link) Open() backend.Session {
	return &session{l.mem.Open().(memory), l}
}

type memory interface {
	backend.Session
	backend.Notifier
	backend.Inspector
}

type session struct {
	memory
	link *link
}

var errNoRoute = errors.New("no route to the store")

// trip is the way to the store, and says whether a request gets there.
func (s *session) trip(ctx context.Context) error {
	s.link.requests.Add(1)
	wait := func(d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return &backend.Error{Kind: backend.Unknown, Err: ctx.Err()}
		}
	}
	if err := wait(500*time.Microsecond + rand.N(time.Millisecond)); err != nil {
		return err
	}
	if s.link.dead.Load() {
		return &backend.Error{Kind: backend.Unknown, Err: errNoRoute}
	}
	if s.link.cut.Load() { // until a client's own limit
		if err := wait(3 * time.Second); err != nil {
			return err
		}
	}
	if s.link.down.Load() || s.link.cut.Load() {
		return &backend.Error{Kind: backend.Unknown, Err: errNoRoute}
	}
	return nil
}

func there[Q, R any](
	ctx context.Context, s *session, req Q, step func(context.Context, Q) (R, error),
) (res R, err error) {
	if err = s.trip(ctx); err != nil {
		return res, err
	}
	return step(ctx, req)
}

func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return there(ctx, s, req, s.memory.Acquire)
}

func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return there(ctx, s, req, s.memory.Release)
}

func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	return there(ctx, s, req, s.memory.Look)
}

func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return there(ctx, s, req, s.memory.Renew)
}

func (s *session) Inspect(
	ctx context.Context, req backend.InspectRequest,
) (backend.Inspection, error) {
	return there(ctx, s, req, s.memory.Inspect)
}

// RenewBatch is one request, as it is on servers.
func (s *session) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	err := s.trip(ctx)
	for i, req := range reqs {
		var res backend.RenewResult
		if err == nil {
			res, err = s.memory.Renew(ctx, req)
		}
		answer(i, res, err)
	}
}

func (s *session) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	wake := req.Wake
	req.Wake = func(w backend.Wakeup) {
		bell := strings.HasSuffix(req.Name, "!")
		if !s.link.cut.Load() && !s.link.down.Load() && !(bell && s.link.deaf.Load()) {
			time.AfterFunc(time.Millisecond, func() { wake(w) })
		}
	}
	return there(ctx, s, req, s.memory.Subscribe)
}

// A fleet is some replicas, and what became of their shards. Each test of it runs in a bubble.
type fleet struct {
	t     *testing.T
	net   *network
	names []string
	opts  []Option
	takes func() time.Duration // how long a run takes to finish

	live   []*replica
	number int

	mu     sync.Mutex
	by     map[string]*replica // the replica that runs each shard
	ended  map[string]time.Time
	tokens map[string]uint64
	gaps   []time.Duration // for how long a shard stood still, of those that have moved
	starts int
}

// A replica is a process with a member.
type replica struct {
	*Set
	fleet  *fleet
	link   *link
	client *dlock.Client
	end    context.CancelFunc
	done   chan error
}

func newFleet(t *testing.T, names []string, opts ...Option) *fleet {
	f := &fleet{
		t: t, net: &network{mem: membackend.New()}, names: names, opts: opts,
		takes: func() time.Duration { return rand.N(50 * time.Millisecond) },
		by:    map[string]*replica{}, ended: map[string]time.Time{}, tokens: map[string]uint64{},
	}
	t.Cleanup(f.check)
	return f
}

// start starts a replica with the fleet's list and options, and some of its own.
func (f *fleet) start(opts ...Option) *replica {
	f.number++
	r := &replica{fleet: f, link: &link{network: f.net}, done: make(chan error, 1)}
	r.client = dlock.New(r.link, dlock.WithClientID(fmt.Sprintf("pod-%03d", f.number)),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	opts = slices.Concat([]Option{WithLogger(slog.New(slog.DiscardHandler))}, f.opts, opts)
	r.Set = New(r.client, "s", f.names, opts...)
	ctx, end := context.WithCancel(context.Background())
	r.end = end
	f.live = append(f.live, r)
	go func() { r.done <- r.Run(ctx, r.run) }()
	return r
}

// run is what each shard does: nothing, until it is told to end.
func (r *replica) run(ctx context.Context, s *Shard) error {
	f := r.fleet
	f.mu.Lock()
	if f.by[s.Name()] != nil {
		f.t.Errorf("shard %s is run twice at once", s.Name())
	}
	if s.Token() <= f.tokens[s.Name()] {
		f.t.Errorf("shard %s has token %d after %d", s.Name(), s.Token(), f.tokens[s.Name()])
	}
	f.by[s.Name()], f.tokens[s.Name()] = r, s.Token()
	f.starts++
	if since, ok := f.ended[s.Name()]; ok {
		f.gaps = append(f.gaps, time.Since(since))
	}
	f.mu.Unlock()

	<-ctx.Done()
	if s.Finishing().Err() == nil {
		time.Sleep(f.takes())
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by[s.Name()] == r {
		f.by[s.Name()], f.ended[s.Name()] = nil, time.Now()
	} else if !r.link.dead.Load() {
		f.t.Errorf("shard %s was another's before its run ended", s.Name())
	}
	return nil
}

func (f *fleet) gone(r *replica) {
	f.live = slices.DeleteFunc(f.live, func(o *replica) bool { return o == r })
}

// stop has a replica leave, as a deploy does.
func (f *fleet) stop(r *replica) {
	r.end()
	f.gone(r)
}

// kill ends a replica as SIGKILL does: nothing of it reaches the store any more.
func (f *fleet) kill(r *replica) {
	r.link.dead.Store(true)
	f.mu.Lock()
	for shard, by := range f.by {
		if by == r {
			f.by[shard], f.ended[shard] = nil, time.Now()
		}
	}
	f.mu.Unlock()
	r.client.Close()
	f.gone(r)
}

// any returns one of those that are live.
func (f *fleet) any() *replica { return f.live[rand.IntN(len(f.live))] }

// balanced says whether all shards run, and nobody has over one more than another.
func (f *fleet) balanced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	load := map[*replica]int{}
	for _, r := range f.by {
		if r != nil {
			load[r]++
		}
	}
	total, fewest, most := 0, len(f.names), 0
	for _, r := range f.live {
		total += load[r]
		fewest, most = min(fewest, load[r]), max(most, load[r])
	}
	return total == len(f.names) && most-fewest <= 1
}

// An outcome is what a change has led to.
type outcome struct {
	took    time.Duration // until it was balanced
	moves   int
	longest time.Duration // that a shard stood still
}

// settles waits until all is balanced, for so long at most, and sees that it stays so. It may look
// balanced for a moment on the way.
func (f *fleet) settles(what string, most time.Duration) outcome {
	f.t.Helper()
	began := time.Now()
	since := began // it is balanced
	for time.Since(since) < 5*time.Second {
		time.Sleep(10 * time.Millisecond)
		if f.balanced() {
			continue
		}
		if since = time.Now(); since.Sub(began) > most {
			f.t.Errorf("%s: it isn't balanced after %v: %v", what, most, f.loads())
			break
		}
	}
	o := outcome{took: since.Sub(began)}
	f.mu.Lock()
	o.moves = f.starts
	f.mu.Unlock()
	time.Sleep(40 * time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	if more := f.starts - o.moves; more > 0 {
		f.t.Errorf("%s: it was balanced after %v, and then %d shards moved", what, o.took, more)
	}
	if len(f.gaps) > 0 {
		o.longest = slices.Max(f.gaps)
	}
	f.t.Logf("%-40s members %3d  balanced after %8.3fs  moves %4d  longest gap %.3fs",
		what, len(f.live), o.took.Seconds(), o.moves, o.longest.Seconds())
	f.starts, f.gaps = 0, nil
	return o
}

// free says whether nobody runs a shard.
func (f *fleet) free(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.by[name] == nil
}

// loads returns how many shards each runs.
func (f *fleet) loads() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	load := map[string]int{}
	for _, r := range f.by {
		if r != nil {
			load[r.client.ID()]++
		}
	}
	return load
}

// moved says what is wrong with how many shards moved, and for how long they stood still.
func (f *fleet) moved(what string, o outcome, most int, longest time.Duration) {
	f.t.Helper()
	if o.moves > most {
		f.t.Errorf("%s: %d shards moved, more than %d", what, o.moves, most)
	}
	if o.longest > longest {
		f.t.Errorf("%s: a shard stood still for %v, longer than %v", what, o.longest, longest)
	}
}

// check ends all replicas, and sees that they end.
func (f *fleet) check() {
	for _, r := range slices.Clone(f.live) {
		f.stop(r)
		select {
		case err := <-r.done:
			if !errors.Is(err, context.Canceled) {
				f.t.Errorf("Run = %v", err)
			}
		case <-time.After(5 * time.Minute):
			f.t.Fatal("Run doesn't return")
		}
		r.client.Close()
	}
	time.Sleep(time.Minute) // calls that hang in the store's client end
}

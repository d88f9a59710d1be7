package cronlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/seed951563bd/distsync/dlock"
)

// DefaultAtLeast is for how long the lock of a job stays taken from its acquisition, however early
// the job ends, unless [WithAtLeast] says otherwise. Clocks that are set over the network differ by
// less. A job may still run every second, which is as often as cron can say.
const DefaultAtLeast = 900 * time.Millisecond

// prefix is what the names of jobs' locks begin with, since other things in the store are called as the jobs are.
const prefix = "cron:"

// patience is how long an attempt to lock may take. A store that hangs must not have a run begin much later than it should, when it has long been another's.
const patience = 5 * time.Second

var (
	errPatience = fmt.Errorf("%w: it has not answered for %v", dlock.ErrUnavailable, patience)
	errTooSoon  = errors.New("this replica ran it so short a time ago: its at-least time is longer than its period, or other jobs have its name")
)

// Func is a job that is told when its lock is lost: its ctx ends with a cause that wraps
// [dlock.ErrLost]. Its error is logged. For that, give it directly to the JobWrapper of [Wrapper],
// with wrappers such as [cron.Recover] outside.
type Func func(ctx context.Context) error

// Run implements [cron.Job] without a lock: the context never ends, and the error is dropped.
func (f Func) Run() { f(context.Background()) }

// Option configures a [Wrapper].
type Option func(*wrapper)

// WithAtLeast sets for how long the lock of a job stays taken from its acquisition, however early
// the job ends. It must be longer than the replicas' clocks differ, and shorter than the job's
// period. The default is [DefaultAtLeast]. With 0 the lock is free when the job ends, and a job
// that takes less time than the clocks differ runs on every replica. [Wrapper] panics if it is
// negative. If the store can't keep a lock taken, every run is skipped and logged as an error.
func WithAtLeast(d time.Duration) Option { return func(w *wrapper) { w.atLeast = d } }

// WithLogger sets the logger. Runs that are skipped since another replica has the lock are of level
// Info. Runs that are skipped since the lock can't be had, failed unlocks, lost locks and errors of
// a [Func] are of level Error. The default is [cron.DefaultLogger], which writes errors only.
// [Wrapper] panics if it is nil.
func WithLogger(log cron.Logger) Option { return func(w *wrapper) { w.log = log } }

type wrapper struct {
	locker  *dlock.Locker
	name    string
	atLeast time.Duration
	log     cron.Logger

	last atomic.Int64 // the end of the at-least time of the last run here that is over, in ns since 1970
}

// Wrapper returns a JobWrapper for the job of that name. Of the replicas that share the client's
// store one runs it, and the others skip that run. Other jobs need other names, or they exclude
// each other; so don't use it in a [cron.WithChain] of several jobs. The lock is called "cron:" and
// the job's name. Each run makes one attempt to lock, which takes 5 s at most. Wrapper panics if
// client, or an option, is nil, or the name is empty.
func Wrapper(client *dlock.Client, name string, opts ...Option) cron.JobWrapper {
	if client == nil || name == "" || slices.ContainsFunc(opts, func(opt Option) bool { return opt == nil }) {
		panic("cronlock: Wrapper: the client or an option is nil, or the name is empty")
	}
	w := &wrapper{locker: client.Locker(prefix + name), name: name, atLeast: DefaultAtLeast, log: cron.DefaultLogger}
	for _, opt := range opts {
		opt(w)
	}
	switch {
	case w.log == nil:
		panic("cronlock: Wrapper: the logger is nil")
	case w.atLeast < 0:
		panic(fmt.Sprintf("cronlock: Wrapper: the at-least time %v is negative", w.atLeast))
	}
	return func(job cron.Job) cron.Job {
		fn, ok := job.(Func)
		if !ok {
			fn = func(context.Context) error { job.Run(); return nil }
		}
		return cron.FuncJob(func() { w.run(fn) })
	}
}

// run runs a job, if its lock can be had.
func (w *wrapper) run(fn Func) {
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	began := time.Now()
	hold, err := w.acquire(ctx, end)
	switch {
	case errors.Is(err, dlock.ErrHeld) && began.UnixNano() < w.last.Load():
		w.log.Error(errTooSoon, "skip", "job", w.name, "atleast", w.atLeast)
		return
	case errors.Is(err, dlock.ErrHeld):
		w.log.Info("skip", "job", w.name)
		return
	case err != nil:
		w.log.Error(err, "skip: the lock can't be had", "job", w.name)
		return
	}
	defer func() {
		w.last.Store(began.Add(w.atLeast).UnixNano())
		if err := hold.Release(context.Background()); err != nil {
			w.log.Error(err, "the lock was lost while the job ran, or its unlock wasn't confirmed", "job", w.name)
		}
	}()
	if err := fn(hold.Context()); err != nil {
		w.log.Error(err, "run", "job", w.name)
	}
}

// acquire makes one attempt, and ends ctx if that takes too long. The context of the hold comes from ctx, and so that can't have a deadline.
func (w *wrapper) acquire(ctx context.Context, end context.CancelCauseFunc) (*dlock.Hold, error) {
	opts := []dlock.AcquireOption{dlock.Wait(0)}
	if w.atLeast != 0 {
		opts = append(opts, dlock.AtLeast(w.atLeast))
	}
	timer := time.AfterFunc(patience, func() { end(errPatience) })
	hold, err := w.locker.Acquire(ctx, opts...)
	if !timer.Stop() && err == nil {
		hold.Release(ctx) // its context has ended just now, and the run is no worse than one that came later
		err = fmt.Errorf("cronlock: lock %q: %w", prefix+w.name, errPatience)
	}
	return hold, err
}

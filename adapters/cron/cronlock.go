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

// DefaultAtLeast is the default of [WithAtLeast]. The lock of a job stays taken for this long after
// its acquisition, even if the job ends earlier. That is longer than the difference between the
// clocks of machines that use NTP, and shorter than a second, the shortest period that cron
// supports.
const DefaultAtLeast = 900 * time.Millisecond

// prefix is prepended to a job's name, so that the job's lock doesn't clash with other names in the
// store.
const prefix = "cron:"

// patience is the timeout of an attempt to lock. Without it, a store that hangs could make this
// replica start a run long after another replica has finished it.
const patience = 5 * time.Second

var (
	errPatience = fmt.Errorf("%w: it has not answered for %v", dlock.ErrUnavailable, patience)
	errTooSoon  = errors.New("the job is due again within its at-least time: either this time is " +
		"longer than its period, or another job has the same name")
)

// A Func is a job that is notified when its lock is lost: its ctx ends with a cause that wraps
// [dlock.ErrLost]. If it returns an error, the error is logged. Both work only if the Func itself
// is passed to the JobWrapper that [Wrapper] returns. So apply other wrappers, such as
// [cron.Recover], to the result.
type Func func(ctx context.Context) error

// Run implements [cron.Job]. It calls f without a lock, with a context that never ends, and drops
// the error.
func (f Func) Run() { f(context.Background()) }

// Option configures a [Wrapper].
type Option func(*wrapper)

// WithAtLeast sets how long the lock of a job stays taken after its acquisition, even if the job
// ends earlier. The time must be longer than the difference between the replicas' clocks, and
// shorter than the job's period. The default is [DefaultAtLeast]. With 0 the lock is free as soon
// as the job ends. Then a job that is shorter than the difference between the clocks may run on
// every replica. [Wrapper] panics if the time is negative. If the store can't keep a lock taken,
// every run is skipped, and logged as an error.
func WithAtLeast(d time.Duration) Option { return func(w *wrapper) { w.atLeast = d } }

// WithLogger sets the logger. A run that is skipped because another replica holds the lock is
// logged with Info. A run that is skipped for another reason is logged with Error, and so are
// failed unlocks, lost locks and errors of a [Func]. The default is [cron.DefaultLogger], which
// writes only errors. [Wrapper] panics if log is nil.
func WithLogger(log cron.Logger) Option { return func(w *wrapper) { w.log = log } }

type wrapper struct {
	locker  *dlock.Locker
	name    string
	atLeast time.Duration
	log     cron.Logger

	// last is the Unix time, in nanoseconds, at which the lock of the last finished run in this
	// process becomes free.
	last atomic.Int64
}

// Wrapper returns a JobWrapper for the job with the given name. Only one of the replicas that share
// the client's store executes a given run of the job. The others skip that run. Each job needs a
// unique name, since jobs with the same name exclude each other. So don't use the wrapper in a
// [cron.WithChain] of several jobs. The lock's name is the job's name with the prefix "cron:". Each
// run makes one attempt to lock, with a timeout of 5 s. Wrapper panics if client or an option is
// nil, or if the name is empty.
func Wrapper(client *dlock.Client, name string, opts ...Option) cron.JobWrapper {
	if client == nil || name == "" ||
		slices.ContainsFunc(opts, func(opt Option) bool { return opt == nil }) {
		panic("cronlock: Wrapper: the client or an option is nil, or the name is empty")
	}
	w := &wrapper{
		locker: client.Locker(prefix + name), name: name, atLeast: DefaultAtLeast,
		log: cron.DefaultLogger,
	}
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

// run runs a job under its lock. If it can't acquire the lock, it logs that and skips the run.
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
			w.log.Error(err, "the lock was lost while the job ran, or its unlock wasn't confirmed",
				"job", w.name)
		}
	}()
	if err := fn(hold.Context()); err != nil {
		w.log.Error(err, "run", "job", w.name)
	}
}

// acquire makes one attempt to acquire the lock. If that takes longer than patience, it ends ctx by
// calling end. ctx has no deadline, because the hold's context is derived from it.
func (w *wrapper) acquire(ctx context.Context, end context.CancelCauseFunc) (*dlock.Hold, error) {
	opts := []dlock.AcquireOption{dlock.Wait(0)}
	if w.atLeast != 0 {
		opts = append(opts, dlock.AtLeast(w.atLeast))
	}
	timer := time.AfterFunc(patience, func() { end(errPatience) })
	hold, err := w.locker.Acquire(ctx, opts...)
	if !timer.Stop() && err == nil {
		// The timer fired just after the acquisition, and ended the hold's context. Skip the run,
		// as after a timeout.
		hold.Release(ctx)
		err = fmt.Errorf("cronlock: lock %q: %w", prefix+w.name, errPatience)
	}
	return hold, err
}

package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/seed951563bd/distsync/dlock"
)

// DefaultAtLeast is the default of [WithAtLeast]. The lock of a job stays taken for this long after
// its acquisition, even if the job ends earlier. That is longer than the difference between the
// clocks of machines that use NTP, and shorter than a second, the shortest period that cron
// supports.
const DefaultAtLeast = 900 * time.Millisecond

// prefix is prepended to a job's name, so that the job's lock doesn't clash with other names in the
// store.
const prefix = "gocron:"

// patience is the timeout of an attempt to lock. Without it, a store that hangs could make this
// replica start a run long after another replica has done it.
const patience = 5 * time.Second

var (
	errPatience = fmt.Errorf("%w: it has not answered for %v", dlock.ErrUnavailable, patience)
	errNoName   = errors.New("the job of a Task also needs its name from gocron.WithName: " +
		"without it all such jobs share one lock")
)

// A Locker is a [gocron.Locker], for [gocron.WithDistributedLocker] and
// [gocron.WithDistributedJobLocker]. Each run of a job is executed by only one of the replicas that
// share the client's store, and skipped by the others. The name of a job's lock is the job's name
// with the prefix "gocron:". A Locker is safe for concurrent use, even by several schedulers.
type Locker struct {
	client  *dlock.Client
	atLeast time.Duration
	log     *slog.Logger
	unnamed string // gocron's default name for Task's jobs

	mu   sync.Mutex
	last map[string]*run // each job's last run, removed when its at-least time ends
}

// Option configures a [Locker].
type Option func(*Locker)

// WithAtLeast sets how long the lock of a job stays taken after its acquisition, even if the job
// ends earlier. The time must be longer than the difference between the replicas' clocks, and
// shorter than the period of every job of this Locker. The default is [DefaultAtLeast]. With 0 the
// lock is free as soon as the job ends. Then a job that is shorter than the difference between the
// clocks may run on every replica. [NewLocker] panics if the time is negative. If the store can't
// keep a lock taken, every run is skipped, with a log message.
func WithAtLeast(d time.Duration) Option { return func(l *Locker) { l.atLeast = d } }

// WithLogger sets the logger for events that gocron doesn't report. A run that is skipped although
// no other replica holds the lock is logged as a warning, and so is a failed unlock. Other skipped
// runs are logged at level debug. The default is [slog.Default]. [NewLocker] panics if log is nil.
func WithLogger(log *slog.Logger) Option { return func(l *Locker) { l.log = log } }

// NewLocker returns a Locker that uses the client's locks. It panics if client or an option is nil.
func NewLocker(client *dlock.Client, opts ...Option) *Locker {
	if client == nil || slices.ContainsFunc(opts, func(opt Option) bool { return opt == nil }) {
		panic("gocronlock: NewLocker: the client or an option is nil")
	}
	l := &Locker{
		client: client, atLeast: DefaultAtLeast, log: slog.Default(), last: make(map[string]*run),
	}
	l.unnamed = runtime.FuncForPC(reflect.ValueOf(l.task("", nil)).Pointer()).Name()
	for _, opt := range opts {
		opt(l)
	}
	switch {
	case l.log == nil:
		panic("gocronlock: NewLocker: the logger is nil")
	case l.atLeast < 0:
		panic(fmt.Sprintf("gocronlock: NewLocker: the at-least time %v is negative", l.atLeast))
	}
	return l
}

// Lock implements [gocron.Locker]. It makes one attempt, with a timeout of 5 s. It doesn't wait for
// the lock, since gocron would then run the job a second time, after another replica has run it.
// It returns the same errors as [dlock.Locker.Acquire]. If the job's context carries a
// [dlock.Owner] (see gocron.WithContext), Lock re-enters that owner's hold. Then the job's runs
// don't exclude each other.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	r, err := l.lock(ctx, key)
	if err != nil {
		l.tellSkipped(ctx, key, err)
		return nil, err
	}
	return r, nil
}

// A run is one run of a job under its lock.
type run struct {
	locker *Locker
	key    string
	job    context.Context // the job's context, which identifies the job
	hold   *dlock.Hold
	end    context.CancelCauseFunc // ends the hold's context
	until  time.Time               // no later than the at-least time's end

	// Guarded by Locker.mu.
	begun, over bool
}

func (l *Locker) lock(ctx context.Context, key string) (*run, error) {
	if key == l.unnamed {
		return nil, errNoName
	}
	job := ctx
	// The timer bounds the attempt only. A deadline of ctx would also end the hold's context, which
	// is derived from ctx.
	ctx, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(patience, func() { end(errPatience) })
	began := time.Now()
	hold, err := l.client.Locker(prefix+key).Acquire(ctx, l.options()...)
	if err == nil && !timer.Stop() {
		// The timer fired just after the acquisition, and ended the hold's context. Skip the run,
		// as after a timeout.
		hold.Release(context.WithoutCancel(ctx))
		err = fmt.Errorf("gocronlock: lock %q: %w", prefix+key, errPatience)
	}
	timer.Stop()
	if err != nil {
		end(nil)
		return nil, err
	}
	r := &run{locker: l, key: key, job: job, hold: hold, end: end, until: began.Add(l.atLeast)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last[key] = r
	return r, nil
}

func (l *Locker) options() []dlock.AcquireOption {
	opts := []dlock.AcquireOption{dlock.Wait(0)}
	if l.atLeast != 0 {
		opts = append(opts, dlock.AtLeast(l.atLeast))
	}
	return opts
}

// tellSkipped logs why a run is skipped.
func (l *Locker) tellSkipped(ctx context.Context, key string, err error) {
	switch {
	case errors.Is(err, dlock.ErrHeld) && l.isAnothers(ctx, key):
		l.log.Warn("gocronlock: a job is skipped, since another job of this program has the same "+
			"name, and its lock", "job", key)
	case errors.Is(err, dlock.ErrHeld) && l.tooSoon(key):
		l.log.Warn("gocronlock: a job is skipped, since it is due again within its at-least "+
			"time, which is longer than its period", "job", key, "atleast", l.atLeast)
	case errors.Is(err, dlock.ErrHeld):
		l.log.Debug("gocronlock: a job is skipped, since another has its lock", "job", key)
	case ctx.Err() != nil:
		l.log.Debug("gocronlock: a job is skipped, since it is stopped", "job", key, "err", err)
	default:
		l.log.Warn("gocronlock: a job is skipped, since its lock can't be had", "job", key, "err",
			err)
	}
}

// isAnothers reports whether a different job of this Locker holds the lock with the given name. A
// job that was removed doesn't count.
func (l *Locker) isAnothers(job context.Context, key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.last[key]
	return r != nil && r.isTaken() && r.job != job && r.job.Err() == nil
}

// tooSoon reports whether the job's last run under this Locker has ended, but its at-least time
// hasn't elapsed yet.
func (l *Locker) tooSoon(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.last[key]
	return r != nil && r.isTaken() && r.over
}

// isTaken reports whether the run's lock is still taken, as far as this process knows.
func (r *run) isTaken() bool { return !r.over || time.Now().Before(r.until) }

// Unlock implements [gocron.Lock]. It unlocks even if ctx has ended, for example because the job
// was removed or the scheduler was shut down.
func (r *run) Unlock(ctx context.Context) error {
	err := r.hold.Release(context.WithoutCancel(ctx))
	r.end(nil)
	l := r.locker
	l.mu.Lock()
	r.over = true
	l.mu.Unlock()
	time.AfterFunc(time.Until(r.until), r.forget) // one-time jobs must not stay in last
	if err != nil {                               // gocron drops the error
		l.log.Warn("gocronlock: the lock of a job was lost while it ran, or its unlock wasn't "+
			"confirmed", "job", r.key, "err", err)
	}
	return err
}

func (r *run) forget() {
	l := r.locker
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last[r.key] == r {
		delete(l.last, r.key)
	}
}

// Task returns a task whose function is notified when its lock is lost. The function's ctx is
// derived from the job's context. It ends when the lock is lost, with a cause that wraps
// [dlock.ErrLost] and is also the job's error. The name must also be the job's name:
//
//	scheduler.NewJob(definition, locker.Task("report", report), gocron.WithName("report"))
//
// If neither the job nor the scheduler has this Locker, the task acquires the lock itself. In that
// case gocron counts a skipped run as a success. If the store didn't answer, gocron counts the run
// as a failure.
func (l *Locker) Task(name string, fn func(ctx context.Context) error) gocron.Task {
	return gocron.NewTask(l.task(name, fn))
}

// task must not be inlined, since that would change the runtime's name for the function that task
// returns. gocron uses this name as the default name of a job.
//
//go:noinline
func (l *Locker) task(name string, fn func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		r := l.begin(name)
		if r == nil {
			lock, err := l.Lock(ctx, name)
			switch {
			case errors.Is(err, dlock.ErrHeld):
				return nil
			case err != nil:
				return err
			}
			defer lock.Unlock(ctx)
			r = lock.(*run)
		}
		err = fn(r.hold.Context())
		return errors.Join(err, r.hold.Err())
	}
}

// begin returns the run that gocron began by calling Lock, just before it executed the task. It
// returns nil if gocron didn't call Lock.
func (l *Locker) begin(key string) *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.last[key]
	if r == nil || r.begun || r.over {
		return nil
	}
	r.begun = true
	return r
}

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

// DefaultAtLeast is for how long the lock of a job stays taken from its acquisition, however early
// the job ends, unless [WithAtLeast] says otherwise. Clocks that are set over the network differ by
// less. A job may still run every second, which is as often as cron can say.
const DefaultAtLeast = 900 * time.Millisecond

// prefix is what the names of jobs' locks begin with, since other things in the store are called as the jobs are.
const prefix = "gocron:"

// patience is how long an attempt to lock may take. A store that hangs must not have a run begin much later than it should, when it has long been another's.
const patience = 5 * time.Second

var (
	errPatience = fmt.Errorf("%w: it has not answered for %v", dlock.ErrUnavailable, patience)
	errNoName   = errors.New("a job that is made of Task needs its name a second time, with gocron.WithName: jobs exclude each other without it")
)

// A Locker is a [gocron.Locker], for [gocron.WithDistributedLocker] and
// [gocron.WithDistributedJobLocker]. Of the replicas that share its client's store one runs the
// job, and the others skip that run. The lock of a job is called "gocron:" and the job's name. It
// is safe for concurrent use, by several schedulers, too.
type Locker struct {
	client  *dlock.Client
	atLeast time.Duration
	log     *slog.Logger
	unnamed string // what gocron calls a job that is made of Task, and given no name

	mu   sync.Mutex
	last map[string]*run // of each job, what was locked last, until its at-least time is over
}

// Option configures a [Locker].
type Option func(*Locker)

// WithAtLeast sets for how long the lock of a job stays taken from its acquisition, however early
// the job ends. It must be longer than the replicas' clocks differ, and shorter than the period of
// every job of this Locker. The default is [DefaultAtLeast]. With 0 the lock is free when the job
// ends, and a job that takes less time than the clocks differ runs on every replica. [NewLocker]
// panics if it is negative. If the store can't keep a lock taken, every run is skipped and logged.
func WithAtLeast(d time.Duration) Option { return func(l *Locker) { l.atLeast = d } }

// WithLogger sets the logger for what gocron doesn't tell. Warnings are runs that were skipped
// although no other replica has the lock, and unlocks that failed. Other skipped runs are of level
// debug. The default is [slog.Default]. [NewLocker] panics if it is nil.
func WithLogger(log *slog.Logger) Option { return func(l *Locker) { l.log = log } }

// NewLocker returns a Locker with the locks of a client. It panics if client, or an option, is nil.
func NewLocker(client *dlock.Client, opts ...Option) *Locker {
	if client == nil || slices.ContainsFunc(opts, func(opt Option) bool { return opt == nil }) {
		panic("gocronlock: NewLocker: the client or an option is nil")
	}
	l := &Locker{client: client, atLeast: DefaultAtLeast, log: slog.Default(), last: make(map[string]*run)}
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

// Lock implements [gocron.Locker]. It makes one attempt, which takes 5 s at most: if it waited
// until the lock is free, gocron would run the job late, and a second time. Errors are those of
// [dlock.Locker.Acquire]. If the job's context names a [dlock.Owner] (see gocron.WithContext), it
// re-enters that owner's hold, and its runs don't exclude each other.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	r, err := l.lock(ctx, key)
	if err != nil {
		l.tellSkipped(ctx, key, err)
		return nil, err
	}
	return r, nil
}

// A run is the lock of a run of a job.
type run struct {
	locker *Locker
	key    string
	job    context.Context // which is another for each job
	hold   *dlock.Hold
	end    context.CancelCauseFunc // of the hold's context
	until  time.Time               // the end of the at-least time, or a little before

	// Guarded by Locker.mu.
	begun, over bool
}

func (l *Locker) lock(ctx context.Context, key string) (*run, error) {
	if key == l.unnamed {
		return nil, errNoName
	}
	job := ctx
	// The attempt is bounded, but not the context of the hold, which comes from this one.
	ctx, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(patience, func() { end(errPatience) })
	began := time.Now()
	hold, err := l.client.Locker(prefix+key).Acquire(ctx, l.options()...)
	if err == nil && !timer.Stop() {
		hold.Release(context.WithoutCancel(ctx)) // its context has ended just now, and the run is no worse than one that came later
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

// tellSkipped logs that a run is skipped.
func (l *Locker) tellSkipped(ctx context.Context, key string, err error) {
	switch {
	case errors.Is(err, dlock.ErrHeld) && l.isAnothers(ctx, key):
		l.log.Warn("gocronlock: a job is skipped, since another job of this program has the same name, and its lock", "job", key)
	case errors.Is(err, dlock.ErrHeld) && l.tooSoon(key):
		l.log.Warn("gocronlock: a job is skipped, since this replica ran it so short a time ago: its at-least time is longer than its period", "job", key, "atleast", l.atLeast)
	case errors.Is(err, dlock.ErrHeld):
		l.log.Debug("gocronlock: a job is skipped, since another has its lock", "job", key)
	case ctx.Err() != nil:
		l.log.Debug("gocronlock: a job is skipped, since it is stopped", "job", key, "err", err)
	default:
		l.log.Warn("gocronlock: a job is skipped, since its lock can't be had", "job", key, "err", err)
	}
}

// isAnothers says whether what this Locker has by that name belongs to another job, which hasn't been removed.
func (l *Locker) isAnothers(job context.Context, key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.last[key]
	return r != nil && r.isTaken() && r.job != job && r.job.Err() == nil
}

// tooSoon says whether a job is over that this Locker locked, and only the at-least time isn't.
func (l *Locker) tooSoon(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.last[key]
	return r != nil && r.isTaken() && r.over
}

// isTaken says whether the lock is taken because of this run, as far as is known here.
func (r *run) isTaken() bool { return !r.over || time.Now().Before(r.until) }

// Unlock implements [gocron.Lock]. It also does so when ctx has ended, as it has when the job was removed or the scheduler shut down.
func (r *run) Unlock(ctx context.Context) error {
	err := r.hold.Release(context.WithoutCancel(ctx))
	r.end(nil)
	l := r.locker
	l.mu.Lock()
	r.over = true
	l.mu.Unlock()
	time.AfterFunc(time.Until(r.until), r.forget) // jobs that run once may have a name each
	if err != nil {                               // gocron drops it
		l.log.Warn("gocronlock: the lock of a job was lost while it ran, or its unlock wasn't confirmed", "job", r.key, "err", err)
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

// Task returns a task whose function is told when its lock is lost. Its ctx comes from the job's,
// and ends then with a cause that wraps [dlock.ErrLost], which is also the job's error. The job
// must have the same name:
//
//	scheduler.NewJob(definition, locker.Task("report", report), gocron.WithName("report"))
//
// The job and the scheduler may be without this Locker: then the task locks by itself. In that case
// gocron counts a skipped run as a success, and a run whose lock couldn't be had as a failure.
func (l *Locker) Task(name string, fn func(ctx context.Context) error) gocron.Task {
	return gocron.NewTask(l.task(name, fn))
}

// task isn't inlined, since gocron names a job by what the runtime calls its function.
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

// begin returns what Lock has locked for the run of a job that begins now: nil if it hasn't.
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

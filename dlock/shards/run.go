package shards

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// A Shard is a shard that this member is running.
type Shard struct {
	name      string
	token     uint64
	finishing *runContext
}

// Name returns the shard's name.
func (s *Shard) Name() string { return s.name }

// Token returns the fencing token of this run, which is larger than the token of any earlier run of
// the shard, by any member. A resource that refuses every token smaller than the largest it has
// seen is protected from a member that was paused for longer than its lease. See
// [dlock.Hold.Token].
func (s *Shard) Token() uint64 { return s.token }

// Finishing returns a context in which to finish work that was begun before the context of the run
// ended. It ends with cause [ErrOverdue] when the run's grace is over, or with a [*dlock.Loss] when
// the shard is lost. See [Grace].
func (s *Shard) Finishing() context.Context { return s.finishing }

// Times between attempts.
const (
	restartPause = time.Second // how long to wait before restarting a run that returned early
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// A run handles one shard. It begins when this member starts to want the shard, and ends when the
// member has released it. Each run has one goroutine, and another one while fn runs.
type run struct {
	set    *Set
	shard  string
	values context.Context // the context of Run
	wanted context.Context // ends when the shard is no longer wanted; the cause says why
	drop   context.CancelCauseFunc
	lock   *dlock.Locker
	fn     func(context.Context, *Shard) error
	starts chan struct{} // its capacity limits the number of concurrent attempts
	since  time.Time     // when the run began to wait for the lock

	info     ShardInfo // guarded by Set.mu
	panicked func(any)
}

// loop runs the shard for as long as it is wanted.
func (r *run) loop() {
	pause := firstPause
	for r.wanted.Err() == nil {
		began, err := r.once()
		switch {
		case began && err == nil:
			r.wait(restartPause)
			pause = firstPause
		case began:
			r.set.log.Warn("shards: a run has returned early and is started again",
				"set", r.set.name, "shard", r.shard, "err", err)
			r.wait(restartPause)
			pause = firstPause
		case errors.Is(err, dlock.ErrClosed):
			return
		case errors.Is(err, dlock.ErrNotAcquired):
		case r.wanted.Err() == nil:
			r.report(err, pause)
			r.wait(pause)
			pause = min(2*pause, longestPause)
		}
	}
}

// report records why a shard can't be acquired. Once the pauses between attempts are long, it also
// logs the reason.
func (r *run) report(err error, pause time.Duration) {
	r.set.mu.Lock()
	r.info.Err = err
	r.set.mu.Unlock()
	if pause >= time.Second {
		r.set.log.Warn("shards: a shard can't be acquired yet",
			"set", r.set.name, "shard", r.shard, "err", err)
	}
}

// wait waits for d, or until the shard is no longer wanted.
func (r *run) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.wanted.Done():
	}
}

// enter records the state of the shard.
func (r *run) enter(s State) {
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.info.State, r.info.Since = s, time.Now()
}

// once acquires the shard's lock, runs fn, and releases the lock. It reports whether fn ran. If fn
// returned early, err is fn's error. If fn didn't run, err is the reason.
func (r *run) once() (began bool, err error) {
	select { // limit only first attempts, which don't wait for the lock
	case r.starts <- struct{}{}:
	case <-r.wanted.Done():
		return false, r.wanted.Err()
	}
	began, err = r.attempt(func() { <-r.starts }, dlock.Wait(0))
	if !began && errors.Is(err, dlock.ErrHeld) && r.wanted.Err() == nil {
		return r.attempt(func() {}, dlock.Wait(r.set.client.Lease()/3))
	}
	return began, err
}

// attempt is like once, but with a limited wait for the lock. It calls tried when the wait has
// ended.
func (r *run) attempt(tried func(), bound dlock.AcquireOption) (began bool, err error) {
	// ctx ends if the shard is no longer wanted, or if the attempt takes too long. Once the lock is
	// held, ctx must not end for either reason, because the context of the hold would end with it.
	// ctx names no owner, because two members in one process with the same owner wouldn't exclude
	// each other.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	unwanted := context.AfterFunc(r.wanted, cancel)
	late := time.AfterFunc(r.set.client.Lease(), cancel) // a store's client may have no time-out
	var inside context.Context
	err = r.lock.Do(ctx, func(held context.Context) error {
		inside = held
		tried()
		tried = func() {}
		if !late.Stop() || !unwanted() {
			return nil // held has ended, or is about to
		}
		began = true
		return r.call(held)
	}, bound)
	tried()
	late.Stop()
	unwanted()
	if began {
		r.giveBack(inside)
	}
	if early, ok := errors.AsType[*returned](err); ok {
		return began, early.err
	}
	if began && err != nil && !errors.Is(err, dlock.ErrLost) && !errors.Is(err, dlock.ErrClosed) {
		r.set.log.Warn("shards: it isn't certain that a shard was given back",
			"set", r.set.name, "shard", r.shard, "err", err)
	}
	if began {
		err = nil
	}
	return began, err
}

// giveBack releases the re-entries that fn made with the context of its hold and didn't unlock.
// Otherwise the shard would be held and renewed forever.
func (r *run) giveBack(inside context.Context) {
	left := 0
	for r.lock.UnlockContext(inside) == nil {
		left++
	}
	if left > 0 {
		r.set.log.Warn("shards: a run has returned without giving back what it has re-entered",
			"set", r.set.name, "shard", r.shard, "count", left)
	}
}

// The type returned wraps the error of a run that returned without being told to.
type returned struct{ err error }

func (r *returned) Error() string { return r.err.Error() }

// call runs fn in a separate goroutine. If fn ends that goroutine with [runtime.Goexit], that
// counts as a return.
func (r *run) call(held context.Context) error {
	token, _ := dlock.Token(held)
	ctx := newRunContext(held, r.values)
	finishing := newRunContext(held, r.values)
	defer ctx.stop(nil)
	defer finishing.stop(nil)
	s := &Shard{name: r.shard, token: token, finishing: finishing}

	began := time.Now()
	r.set.mu.Lock()
	r.info.State, r.info.Since, r.info.Token, r.info.Err = Running, began, token, nil
	r.set.mu.Unlock()
	if t := r.set.trace.Start; t != nil {
		t(RunStart{Set: r.set.name, Shard: r.shard, Token: token, Waited: began.Sub(r.since)})
	}

	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.set.log.Error("shards: a run has panicked",
					"set", r.set.name, "shard", r.shard, "panic", p, "stack", string(debug.Stack()))
				r.panicked(p)
			}
		}()
		err = r.fn(ctx, s)
	}()
	end := RunEnd{Set: r.set.name, Shard: r.shard, Token: token}
	told := r.finish(ctx, finishing, done, func(told time.Time) {
		end.Overdue, end.Cause = true, context.Cause(ctx)
		end.Ran, end.Finished = time.Since(began), time.Since(told)
		if t := r.set.trace.Overdue; t != nil {
			t(end)
		}
	})
	r.since = time.Now()

	cause := context.Cause(ctx)
	end.Ran, end.Cause, end.Err = r.since.Sub(began), cause, err
	if !told.IsZero() {
		end.Finished = r.since.Sub(told)
	}
	if t := r.set.trace.End; t != nil {
		t(end)
	}
	r.set.mu.Lock()
	defer r.set.mu.Unlock()
	r.info.Err, r.info.Since, r.info.Token = err, r.since, 0
	r.info.State = Waiting
	if cause != nil {
		return nil
	}
	r.info.State = Failing
	if err == nil {
		return nil
	}
	return &returned{err}
}

// finish waits until a run has returned. If the run must end early, finish tells it to return, and
// calls overdue if the run doesn't return within its grace. finish returns the time at which it
// told the run to return, or the zero time if the run returned by itself.
func (r *run) finish(
	ctx, finishing *runContext, done <-chan struct{}, overdue func(told time.Time),
) (told time.Time) {
	select {
	case <-done:
		return time.Time{}
	case <-r.wanted.Done():
		ctx.stop(context.Cause(r.wanted))
	case <-ctx.Done(): // the shard is lost, or the client is closed
	}
	told = time.Now()
	r.enter(Finishing)
	grace := time.NewTimer(r.set.grace)
	defer grace.Stop()
	select {
	case <-done:
		return told
	case <-grace.C:
	}
	r.enter(Overdue)
	finishing.stop(ErrOverdue)
	r.set.log.Error("shards: a run goes on though it was told to return, and keeps its shard",
		"set", r.set.name, "shard", r.shard, "grace", r.set.grace)
	overdue(told)
	<-done
	return told
}

// panicking stores the first panic among the runs of a set.
type panicking struct {
	value atomic.Pointer[any]
	done  chan struct{} // closed at the first panic
}

func newPanicking() *panicking { return &panicking{done: make(chan struct{})} }

func (p *panicking) add(v any) {
	if p.value.CompareAndSwap(nil, &v) {
		close(p.done)
	}
}

// again panics with the value of the first panic, if a run has panicked.
func (p *panicking) again() {
	if v := p.value.Load(); v != nil {
		panic(fmt.Sprintf("shards: a run has panicked: %v", *v))
	}
}

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A worker runs jobs under the lock.
type worker struct {
	name     string
	client   *dlock.Client
	lock     *dlock.Locker
	timeline *timeline
}

func newWorker(name string, store backend.Backend, t *timeline) *worker {
	client := dlock.New(store, dlock.WithLease(lease))
	return &worker{name, client, client.Locker(lockName), t}
}

// turn acquires the lock, runs a job and releases the lock.
func (w *worker) turn(ctx context.Context, job func(context.Context) error) error {
	w.timeline.say(w.name, "wants the lock")
	return w.lock.Do(ctx, func(ctx context.Context) error {
		w.timeline.entered(w.name)
		err := job(ctx)
		w.timeline.say(w.name, "unlocks")
		return err
	})
}

// work is a job that needs the lock. Its context ends early if the lock is lost.
func (w *worker) work(ctx context.Context) error {
	return sleep(ctx, 300*time.Millisecond)
}

// workReentering is a job that acquires the lock itself, although its caller already holds it. Here
// ctx identifies the hold, so Do re-enters it. With another context Do would wait forever for its
// own lock, as with a sync.Mutex.
func (w *worker) workReentering(ctx context.Context) error {
	if err := w.work(ctx); err != nil {
		return err
	}
	err := w.lock.Do(ctx, func(ctx context.Context) error {
		if err := w.sayHolds(ctx, "re-entered"); err != nil {
			return err
		}
		return w.work(ctx)
	})
	if err != nil {
		return err
	}
	return w.sayHolds(ctx, "unlocked once")
}

func (w *worker) sayHolds(ctx context.Context, what string) error {
	n, err := w.lock.HoldCount(ctx)
	if err == nil {
		w.timeline.say(w.name, "%s: holds %d", what, n)
	}
	return err
}

// sleep sleeps for d, or until ctx ends. If ctx ends, it returns the cause.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// together runs jobs concurrently.
func together(jobs ...func() error) error {
	errs := make([]error, len(jobs))
	var all sync.WaitGroup
	for i, job := range jobs {
		all.Go(func() { errs[i] = job() })
	}
	all.Wait()
	return errors.Join(errs...)
}

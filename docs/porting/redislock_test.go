package porting

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

func redislockDo(ctx context.Context, locks *redislock.Client, name string, work job) error {
	lock, err := locks.Obtain(ctx, name, 30*time.Second, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond),
	})
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return work(ctx)
}

func redislockTry(ctx context.Context, locks *redislock.Client, name string, work job) error {
	lock, err := locks.Obtain(ctx, name, 30*time.Second, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil // another is at it
	}
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return work(ctx)
}

func redislockWait(ctx context.Context, locks *redislock.Client, name string, work job) error {
	lock, err := locks.Obtain(ctx, name, 30*time.Second, &redislock.Options{
		// for one call
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(5*time.Millisecond), 20),
	})
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return work(ctx)
}

func redislockRefresh(ctx context.Context, locks *redislock.Client, name string, work job) error {
	lock, err := locks.Obtain(ctx, name, lease, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var refreshing sync.WaitGroup
	refreshing.Go(func() {
		tick := time.NewTicker(lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := lock.Refresh(ctx, lease, nil); err != nil {
				cancel(err)
				return
			}
		}
	})
	err = work(ctx)
	cancel(nil)
	refreshing.Wait()
	lock.Release(context.WithoutCancel(ctx))
	return err
}

func redislockHandle(
	ctx context.Context, locks *redislock.Client, name string, one, two job,
) error {
	lock, err := locks.Obtain(ctx, name, 30*time.Second, nil)
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	if err := one(ctx); err != nil {
		return err
	}
	if left, err := lock.TTL(ctx); err != nil || left == 0 {
		return redislock.ErrLockNotHeld // it isn't mine any more
	}
	return two(ctx)
}

func dlockHandle(ctx context.Context, client *dlock.Client, name string, one, two job) (err error) {
	h, err := client.Locker(name).Acquire(ctx, dlock.Wait(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Release(ctx)) }() // err is the function's result
	if err := one(h.Context()); err != nil {
		return err
	}
	if err := h.Err(); err != nil {
		return err // it isn't mine any more
	}
	return two(h.Context())
}

func redislockWho(
	ctx context.Context, rdb *redis.Client, locks *redislock.Client, name string,
) (string, error) {
	lock, err := locks.Obtain(ctx, name, 30*time.Second, &redislock.Options{Metadata: "web-7"})
	if err != nil {
		return "", err
	}
	defer lock.Release(ctx)

	// Elsewhere:
	value, err := rdb.Get(ctx, name).Result()
	if err != nil {
		return "", err
	}
	who := value[len(lock.Token()):] // the length of a token is known: 22
	return who, nil
}

func dlockWho(ctx context.Context, rdb *redis.Client, name string) (string, error) {
	client := dlock.New(redisbackend.New(rdb, redisbackend.WithPrefix("lock:")),
		dlock.WithClientID("web-7"))
	defer client.Close()
	h, err := client.Locker(name).Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer h.Release(ctx)

	// Elsewhere:
	who, err := client.Locker(name).Holder(ctx)
	if err != nil {
		return "", err
	}
	return who.Client, nil
}

func redislockOpen(rdb *redis.Client) *redislock.Client {
	locks := redislock.New(rdb)
	return locks
}

// A redislockLab is a redislock and a client of ours, on one server.
type redislockLab struct {
	rdb    *redis.Client
	locks  *redislock.Client
	client *dlock.Client
}

func TestRedislock(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	rdb := connect(t, server.Addr)
	lab := redislockLab{rdb, redislockOpen(rdb), connectLocks(t, server.Addr)}
	for name, run := range map[string]func(t *testing.T, lab redislockLab){
		"take and release":                  redislockPair(redislockDo, dlockDo, excludes),
		"try once":                          redislockPair(redislockTry, dlockTry, skips),
		"wait with a bound":                 redislockBound,
		"no deadline":                       redislockNoDeadline,
		"renewal":                           redislockRenewal,
		"still mine":                        redislockStillMine,
		"who has it":                        redislockSeen,
		"Release of a lost lock":            redislockLost,
		"release with a context that ended": redislockRelease,
		"a strategy that is shared":         redislockSpent,
		"one token twice":                   redislockToken,
		"the same name":                     redislockSameName,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, lab)
		})
	}
}

// redislockPair is a test of one pair.
func redislockPair(
	before func(context.Context, *redislock.Client, string, job) error, after func(
		context.Context, *dlock.Client, string, job,
	) error,
	check func(t *testing.T, enter func(ctx context.Context, work job) error),
) func(
	t *testing.T, lab redislockLab,
) {
	return func(t *testing.T, lab redislockLab) {
		sides(t, func(t *testing.T) {
			check(t, func(ctx context.Context, work job) error {
				return before(ctx, lab.locks, t.Name(), work)
			})
		}, func(t *testing.T) {
			check(t, func(ctx context.Context, work job) error {
				return after(ctx, lab.client, t.Name(), work)
			})
		})
	}
}

func redislockBound(t *testing.T, lab redislockLab) {
	err := givesUp(t, func(ctx context.Context, work job) error {
		return redislockWait(ctx, lab.locks, t.Name(), work)
	})
	wantErr(t, err, redislock.ErrNotObtained)
	err = givesUp(t, func(ctx context.Context, work job) error {
		return dlockWait(ctx, lab.client, t.Name(), work)
	})
	wantErr(t, err, dlock.ErrNotAcquired, dlock.ErrHeld)
}

// Without a deadline Obtain waits for as long as the lock would last.
func redislockNoDeadline(t *testing.T, lab redislockLab) {
	_, err := lab.locks.Obtain(t.Context(), t.Name(), time.Minute, nil)
	must(t, err)
	_, err = lab.locks.Obtain(t.Context(), t.Name(), 100*time.Millisecond,
		&redislock.Options{RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond)})
	wantErr(t, err, context.DeadlineExceeded)
}

func redislockRenewal(t *testing.T, lab redislockLab) {
	sides(t, func(t *testing.T) {
		renews(t, pttl(t, lab.rdb, t.Name()), func(ctx context.Context, work job) error {
			return redislockRefresh(ctx, lab.locks, t.Name(), work)
		})
	}, func(t *testing.T) {
		renews(t, pttl(t, lab.rdb, "lock:"+t.Name()), func(ctx context.Context, work job) error {
			return dlockDo(ctx, lab.client, t.Name(), work)
		})
	})
}

func redislockStillMine(t *testing.T, lab redislockLab) {
	name := t.Name()
	none := func(ctx context.Context) error { return nil }
	second, done := ran()
	must(t, redislockHandle(bounded(t), lab.locks, name, none, second))
	if !done.Load() {
		t.Error("redislock: not done, though the lock was held all the while")
	}
	second, done = ran()
	must(t, dlockHandle(bounded(t), lab.client, name, none, second))
	if !done.Load() {
		t.Error("not done, though the lock was held all the while")
	}

	second, done = ran()
	wantErr(t, redislockHandle(bounded(t), lab.locks, name,
		func(ctx context.Context) error { return lab.rdb.Del(ctx, name).Err() }, second),
		redislock.ErrLockNotHeld)
	wantErr(t, dlockHandle(bounded(t), lab.client, name, func(ctx context.Context) error {
		if err := lab.rdb.Del(ctx, "lock:"+name).Err(); err != nil {
			return err
		}
		<-ctx.Done() // it is told
		return nil
	}, second), dlock.ErrLost)
	if done.Load() {
		t.Error("done without the lock")
	}
}

func redislockSeen(t *testing.T, lab redislockLab) {
	before, err := redislockWho(bounded(t), lab.rdb, lab.locks, t.Name())
	must(t, err)
	after, err := dlockWho(bounded(t), lab.rdb, t.Name())
	must(t, err)
	if before != "web-7" || after != before {
		t.Error(before, after)
	}
}

func redislockLost(t *testing.T, lab redislockLab) {
	ctx, name := bounded(t), t.Name()
	lock, err := lab.locks.Obtain(ctx, name, time.Minute, nil)
	must(t, err)
	must(t, lab.rdb.Del(ctx, name).Err())
	wantErr(t, lock.Refresh(ctx, time.Minute, nil), redislock.ErrNotObtained)
	wantErr(t, lock.Release(ctx), redislock.ErrLockNotHeld)
	var none *redislock.Lock
	wantErr(t, none.Release(ctx), redislock.ErrLockNotHeld)

	h, err := lab.client.Locker(name).Acquire(ctx)
	must(t, err)
	must(t, lab.rdb.Del(ctx, "lock:"+name).Err())
	wantErr(t, h.Release(ctx), dlock.ErrLost)
	wantErr(t, h.Release(ctx), dlock.ErrNotHeld)
}

func redislockRelease(t *testing.T, lab redislockLab) {
	name := t.Name()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	lock, err := lab.locks.Obtain(t.Context(), name, time.Minute, nil)
	must(t, err)
	wantErr(t, lock.Release(ended), context.Canceled)
	if n := lab.rdb.Exists(t.Context(), name).Val(); n != 1 {
		t.Error("the lock is gone")
	}
	h, err := lab.client.Locker(name).Acquire(bounded(t))
	must(t, err)
	must(t, h.Release(ended))
	if n := lab.rdb.Exists(t.Context(), "lock:"+name).Val(); n != 0 {
		t.Error("the lock is there")
	}
}

// One LimitRetry is good for one call: it counts on.
func redislockSpent(t *testing.T, lab redislockLab) {
	ctx := bounded(t)
	lock, err := lab.locks.Obtain(ctx, t.Name(), time.Minute, nil)
	must(t, err)
	asked := 0
	opts := &redislock.Options{RetryStrategy: redislock.LimitRetry(countedBackoff{&asked}, 3)}
	for _, want := range []int{3, 3} {
		_, err = lab.locks.Obtain(ctx, t.Name(), time.Minute, opts)
		wantErr(t, err, redislock.ErrNotObtained)
		if asked != want {
			t.Errorf("%d attempts were repeated, want %d", asked, want)
		}
	}
	must(t, lock.Release(ctx))
}

type countedBackoff struct{ asked *int }

func (b countedBackoff) NextBackoff() time.Duration { *b.asked++; return time.Millisecond }

// Anybody with the token has the lock, and the first Release frees it. An owner's holds are
// counted.
func redislockToken(t *testing.T, lab redislockLab) {
	ctx, name := bounded(t), t.Name()
	opts := &redislock.Options{Token: "job 17"}
	first, err := lab.locks.Obtain(ctx, name, time.Minute, opts)
	must(t, err)
	second, err := lab.locks.Obtain(ctx, name, time.Minute, opts)
	must(t, err)
	must(t, first.Release(ctx))
	wantErr(t, second.Release(ctx), redislock.ErrLockNotHeld)

	locker := lab.client.Locker(name)
	ctx = dlock.WithOwner(ctx, dlock.NewOwner())
	must(t, locker.LockContext(ctx))
	must(t, locker.LockContext(ctx))
	must(t, locker.UnlockContext(ctx))
	if n, err := locker.HoldCount(ctx); err != nil || n != 1 {
		t.Error(n, err)
	}
	must(t, locker.UnlockContext(ctx))
}

// Where both use one key, none gets in beside the other, but neither waits for the other.
func redislockSameName(t *testing.T, lab redislockLab) {
	ctx, name := bounded(t), t.Name()
	client := newClient(t, redisbackend.New(lab.rdb)) // no prefix
	lock, err := lab.locks.Obtain(ctx, name, time.Minute, nil)
	must(t, err)
	wantErr(t, client.Locker(name).LockContext(ctx), dlock.ErrConflict)
	must(t, lock.Release(ctx))
	must(t, client.Locker(name).LockContext(ctx))
	_, err = lab.locks.Obtain(ctx, name, time.Minute, nil)
	if err == nil || errors.Is(err, redislock.ErrNotObtained) ||
		!redis.HasErrorPrefix(err, "WRONGTYPE") {
		t.Error("redislock finds", err)
	}
}

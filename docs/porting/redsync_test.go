package porting

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/quorumbackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

func redsyncDo(ctx context.Context, rs *redsync.Redsync, name string, work job) error {
	mutex := rs.NewMutex(name, redsync.WithExpiry(30*time.Second))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(context.WithoutCancel(ctx))
	return work(ctx)
}

func dlockDo(ctx context.Context, client *dlock.Client, name string, work job) error {
	return client.Locker(name).Do(ctx, work)
}

func redsyncTry(ctx context.Context, rs *redsync.Redsync, name string, work job) error {
	mutex := rs.NewMutex(name, redsync.WithExpiry(30*time.Second))
	err := mutex.TryLockContext(ctx)
	if taken := new(redsync.ErrTaken); errors.As(err, &taken) {
		return nil // another is at it
	}
	if err != nil {
		return err
	}
	defer mutex.UnlockContext(context.WithoutCancel(ctx))
	return work(ctx)
}

func dlockTry(ctx context.Context, client *dlock.Client, name string, work job) error {
	_, err := client.Locker(name).TryDo(ctx, work) // false and nil: another is at it
	return err
}

func redsyncWait(ctx context.Context, rs *redsync.Redsync, name string, work job) error {
	mutex := rs.NewMutex(name, redsync.WithTries(20), redsync.WithRetryDelay(5*time.Millisecond))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(context.WithoutCancel(ctx))
	return work(ctx)
}

func dlockWait(ctx context.Context, client *dlock.Client, name string, work job) error {
	return client.Locker(name).Do(ctx, work, dlock.Wait(100*time.Millisecond))
}

func redsyncExtend(ctx context.Context, rs *redsync.Redsync, name string, work job) error {
	mutex := rs.NewMutex(name, redsync.WithExpiry(lease))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var extending sync.WaitGroup
	extending.Go(func() {
		tick := time.NewTicker(lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if ok, err := mutex.ExtendContext(ctx); !ok {
				cancel(err)
				return
			}
		}
	})
	err := work(ctx)
	cancel(nil)
	extending.Wait()
	mutex.UnlockContext(context.WithoutCancel(ctx))
	return err
}

// redsyncHandOver gives a lock to another process, as text, and finish gives it back there.
func redsyncHandOver(ctx context.Context, rs *redsync.Redsync, name string) (string, error) {
	mutex := rs.NewMutex(name, redsync.WithExpiry(10*time.Minute))
	err := mutex.TryLockContext(ctx)
	return mutex.Value(), err
}

func redsyncFinish(ctx context.Context, rs *redsync.Redsync, name, value string) error {
	_, err := rs.NewMutex(name, redsync.WithValue(value)).UnlockContext(ctx)
	return err
}

func dlockHandOver(ctx context.Context, client *dlock.Client, name string) error {
	h, err := client.Locker(name).Acquire(ctx, dlock.Wait(0), dlock.AtLeast(10*time.Minute))
	if err != nil {
		return err
	}
	return h.Release(ctx) // the lock stays taken
}

func dlockFinish(ctx context.Context, client *dlock.Client, name string) error {
	_, err := client.Locker(name).ForceUnlock(ctx)
	return err
}

func redsyncQuorum(rdb1, rdb2, rdb3 *redis.Client) *redsync.Redsync {
	rs := redsync.New(goredis.NewPool(rdb1), goredis.NewPool(rdb2), goredis.NewPool(rdb3))
	return rs
}

func dlockQuorum(rdb1, rdb2, rdb3 *redis.Client) *dlock.Client {
	one, two, three := redisbackend.New(rdb1), redisbackend.New(rdb2), redisbackend.New(rdb3)
	client := dlock.New(quorumbackend.New(one, two, three))
	return client
}

func redsyncOpen(rdb *redis.Client) *redsync.Redsync {
	rs := redsync.New(goredis.NewPool(rdb))
	return rs
}

func dlockOpen(rdb *redis.Client) *dlock.Client {
	client := dlock.New(redisbackend.New(rdb, redisbackend.WithPrefix("lock:")))
	return client
}

// A redsyncLab is a redsync and a client of ours, on one server.
type redsyncLab struct {
	rdb    *redis.Client
	rs     *redsync.Redsync
	client *dlock.Client
}

func TestRedsync(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	rdb := connect(t, server.Addr)
	lab := redsyncLab{rdb, redsyncOpen(rdb), connectLocks(t, server.Addr)}
	for name, run := range map[string]func(t *testing.T, lab redsyncLab){
		"take and release":                  redsyncPair(redsyncDo, dlockDo, excludes),
		"try once":                          redsyncPair(redsyncTry, dlockTry, skips),
		"wait with a bound":                 redsyncBound,
		"renewal":                           redsyncRenewal,
		"still mine":                        redsyncStillMine,
		"hand over":                         redsyncHandsOver,
		"Unlock of a lost lock":             redsyncLost,
		"a context that ends":               redsyncContext,
		"it gives up by itself":             redsyncGivesUp,
		"release with a context that ended": redsyncRelease,
		"restart":                           redsyncRestart,
		"who has it":                        redsyncWho,
		"the same name":                     redsyncSameName,
		"Lock of a locked one":              redsyncAgain,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, lab)
		})
	}
}

// redsyncPair is a test of one pair.
func redsyncPair(
	before func(context.Context, *redsync.Redsync, string, job) error, after func(
		context.Context, *dlock.Client, string, job,
	) error,
	check func(t *testing.T, enter func(ctx context.Context, work job) error),
) func(
	t *testing.T, lab redsyncLab,
) {
	return func(t *testing.T, lab redsyncLab) {
		sides(t, func(t *testing.T) {
			check(t, func(ctx context.Context, work job) error {
				return before(ctx, lab.rs, t.Name(), work)
			})
		}, func(t *testing.T) {
			check(t, func(ctx context.Context, work job) error {
				return after(ctx, lab.client, t.Name(), work)
			})
		})
	}
}

func redsyncBound(t *testing.T, lab redsyncLab) {
	sides(t, func(t *testing.T) {
		err := givesUp(t, func(ctx context.Context, work job) error {
			return redsyncWait(ctx, lab.rs, t.Name(), work)
		})
		if taken := new(redsync.ErrTaken); !errors.As(err, &taken) ||
			errors.Is(err, redsync.ErrFailed) {
			t.Error(err)
		}
	}, func(t *testing.T) {
		err := givesUp(t, func(ctx context.Context, work job) error {
			return dlockWait(ctx, lab.client, t.Name(), work)
		})
		wantErr(t, err, dlock.ErrNotAcquired, dlock.ErrHeld)
	})
}

func redsyncRenewal(t *testing.T, lab redsyncLab) {
	sides(t, func(t *testing.T) {
		renews(t, pttl(t, lab.rdb, t.Name()), func(ctx context.Context, work job) error {
			return redsyncExtend(ctx, lab.rs, t.Name(), work)
		})
	}, func(t *testing.T) {
		renews(t, pttl(t, lab.rdb, "lock:"+t.Name()), func(ctx context.Context, work job) error {
			return dlockDo(ctx, lab.client, t.Name(), work)
		})
	})
}

func redsyncStillMine(t *testing.T, lab redsyncLab) {
	ctx, name := bounded(t), t.Name()
	mutex := lab.rs.NewMutex(name, redsync.WithExpiry(10*time.Minute))
	must(t, mutex.LockContext(ctx))
	h, err := lab.client.Locker(name).Acquire(ctx)
	must(t, err)
	redsyncMine := func() bool {
		mine := time.Now().Before(mutex.Until())
		return mine
	}
	dlockMine := func() bool {
		mine := h.Err() == nil
		return mine
	}
	if !redsyncMine() || !dlockMine() || !time.Now().Before(h.Until()) {
		t.Error("what is held is not held")
	}
	must(t, lab.rdb.Del(ctx, name, "lock:"+name).Err())
	testservers.Until(t, "ours hears that it is lost", func() bool { return !dlockMine() })
	<-h.Lost()
	if !redsyncMine() {
		t.Error("redsync's Until knows that the key is gone")
	}
	wantErr(t, h.Release(ctx), dlock.ErrLost)
}

func redsyncHandsOver(t *testing.T, lab redsyncLab) {
	sides(t, func(t *testing.T) {
		ctx := bounded(t)
		value, err := redsyncHandOver(ctx, lab.rs, t.Name())
		must(t, err)
		if _, err := redsyncHandOver(ctx, lab.rs, t.Name()); err == nil {
			t.Error("the lock is free")
		}
		must(t, redsyncFinish(ctx, lab.rs, t.Name(), value))
		_, err = redsyncHandOver(ctx, lab.rs, t.Name())
		must(t, err)
	}, func(t *testing.T) {
		ctx := bounded(t)
		must(t, dlockHandOver(ctx, lab.client, t.Name()))
		wantErr(t, dlockHandOver(ctx, lab.client, t.Name()), dlock.ErrHeld)
		must(t, dlockFinish(ctx, lab.client, t.Name()))
		must(t, dlockHandOver(ctx, lab.client, t.Name()))
	})
}

// Both libraries tell a lock whose key has gone from one that another client has by then.
func redsyncLost(t *testing.T, lab redsyncLab) {
	ctx, name := bounded(t), t.Name()
	mutex := lab.rs.NewMutex(name)
	must(t, mutex.LockContext(ctx))
	must(t, lab.rdb.Del(ctx, name).Err())
	ok, err := mutex.Unlock()
	wantErr(t, err, redsync.ErrLockAlreadyExpired)
	if ok {
		t.Error("redsync unlocked what was gone")
	}
	must(t, mutex.LockContext(ctx))
	must(t, lab.rdb.Set(ctx, name, "another's", 0).Err())
	ok, err = mutex.Unlock()
	if taken := new(redsync.ErrTaken); ok || !errors.As(err, &taken) {
		t.Error(ok, err)
	}
	never, err := lab.rs.NewMutex(name + ":never").Unlock()
	wantErr(t, err, redsync.ErrLockAlreadyExpired)
	if never {
		t.Error("redsync unlocked what it never had")
	}

	locker := lab.client.Locker(name)
	wantErr(t, locker.UnlockContext(ctx), dlock.ErrNotHeld)
	must(t, locker.LockContext(ctx))
	must(t, lab.rdb.Del(ctx, "lock:"+name).Err())
	wantErr(t, locker.UnlockContext(ctx), dlock.ErrLost)
	must(t, locker.LockContext(ctx))
	must(t, lab.rdb.Del(ctx, "lock:"+name).Err())
	must(t, connectLocks(t, lab.rdb.Options().Addr).Locker(name).
		LockContext(ctx, dlock.FixedLease(time.Minute)))
	wantErr(t, locker.UnlockContext(ctx), dlock.ErrLost)
}

func redsyncContext(t *testing.T, lab redsyncLab) {
	name := t.Name()
	must(t, lab.rs.NewMutex(name).Lock())
	must(t, connectLocks(t, lab.rdb.Options().Addr).Locker(name).LockContext(bounded(t)))

	// It asks at once, and then sleeps for a minute, or until the context ends.
	mutex := lab.rs.NewMutex(name, redsync.WithRetryDelay(time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := mutex.LockContext(ctx); err != redsync.ErrFailed {
		t.Error(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	wantErr(t, lab.client.Locker(name).LockContext(ctx), context.DeadlineExceeded, dlock.ErrHeld)
}

func redsyncGivesUp(t *testing.T, lab redsyncLab) {
	name := t.Name()
	must(t, lab.rs.NewMutex(name).Lock())
	asked := 0
	mutex := lab.rs.NewMutex(name, redsync.WithRetryDelayFunc(func(int) time.Duration {
		asked++
		return time.Millisecond
	}))
	if taken := new(redsync.ErrTaken); !errors.As(mutex.Lock(), &taken) {
		t.Error("Lock waits until it has the lock")
	}
	if asked != 31 {
		t.Errorf("it slept %d times", asked)
	}
}

func redsyncRelease(t *testing.T, lab redsyncLab) {
	name := t.Name()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	mutex := lab.rs.NewMutex(name)
	must(t, mutex.Lock())
	if ok, err := mutex.UnlockContext(ended); ok {
		t.Error("redsync unlocks with a context that has ended:", err)
	}
	if n := lab.rdb.Exists(t.Context(), name).Val(); n != 1 {
		t.Error("the lock is gone")
	}
	locker := lab.client.Locker(name)
	must(t, locker.LockContext(bounded(t)))
	must(t, locker.UnlockContext(ended))
	if n := lab.rdb.Exists(t.Context(), "lock:"+name).Val(); n != 0 {
		t.Error("the lock is there")
	}
}

// Extend puts a lock back that the server has lost, if it is told to. Here that is a loss.
func redsyncRestart(t *testing.T, lab redsyncLab) {
	ctx, name := bounded(t), t.Name()
	mutex := lab.rs.NewMutex(name, redsync.WithSetNXOnExtend())
	must(t, mutex.LockContext(ctx))
	must(t, lab.rdb.Del(ctx, name).Err())
	if ok, err := mutex.ExtendContext(ctx); !ok {
		t.Error(err)
	}
	h, err := lab.client.Locker(name).Acquire(ctx)
	must(t, err)
	must(t, lab.rdb.Del(ctx, "lock:"+name).Err())
	<-h.Lost()
	if loss, ok := errors.AsType[*dlock.Loss](h.Release(ctx)); !ok ||
		loss.Reason != dlock.LossGone {
		t.Error(loss)
	}
}

func redsyncWho(t *testing.T, lab redsyncLab) {
	ctx, name := bounded(t), t.Name()
	rdb, client := lab.rdb, dlockOpen(lab.rdb)
	defer client.Close()
	mutex := lab.rs.NewMutex(name)
	must(t, mutex.LockContext(ctx))
	value, err := rdb.Get(ctx, name).Result() // the random value of whoever has it
	must(t, err)
	if value != mutex.Value() {
		t.Error(value)
	}
	locker := client.Locker(name)
	must(t, locker.LockContext(ctx))
	// who.Client is "web-7/4711/K5JQ…": host, process, and 80 random bits
	who, err := client.Locker(name).Holder(ctx)
	must(t, err)
	if who.Client != client.ID() {
		t.Error(who)
	}
	must(t, locker.UnlockContext(ctx))
}

// Where both use one key, none gets in beside the other, but ours doesn't wait for it.
func redsyncSameName(t *testing.T, lab redsyncLab) {
	ctx, name := bounded(t), t.Name()
	client := newClient(t, redisbackend.New(lab.rdb)) // no prefix
	mutex := lab.rs.NewMutex(name)
	must(t, mutex.LockContext(ctx))
	wantErr(t, client.Locker(name).LockContext(ctx), dlock.ErrConflict)
	if ok, err := mutex.Unlock(); !ok {
		t.Fatal(err)
	}
	must(t, client.Locker(name).LockContext(ctx))
	if taken := new(redsync.ErrTaken); !errors.As(mutex.TryLock(), &taken) {
		t.Error("redsync doesn't find it taken")
	}
}

func redsyncAgain(t *testing.T, lab redsyncLab) {
	ctx, name := bounded(t), t.Name()
	mutex := lab.rs.NewMutex(name)
	must(t, mutex.LockContext(ctx))
	if err := mutex.TryLockContext(ctx); err == nil {
		t.Error("a mutex that is locked is locked again")
	}
	mutex = lab.rs.NewMutex(name+":short", redsync.WithExpiry(500*time.Millisecond),
		redsync.WithTimeoutFactor(1))
	must(t, mutex.LockContext(ctx))
	must(t, mutex.LockContext(ctx)) // when the first has expired

	ctx = dlock.WithOwner(ctx, dlock.NewOwner())
	locker := lab.client.Locker(name)
	must(t, locker.LockContext(ctx))
	must(t, locker.LockContext(ctx))
	must(t, locker.UnlockContext(ctx))
	if held, err := locker.IsHeld(ctx); err != nil || !held {
		t.Error(held, err)
	}
	must(t, locker.UnlockContext(ctx))
}

// Two of three servers are enough for both. Ours doesn't even wait for the third.
func TestRedsyncQuorum(t *testing.T) {
	t.Parallel()
	var servers [3]*testservers.Server
	var rdbs [3]*redis.Client
	for i := range servers {
		servers[i] = testservers.Redis(t)
		rdbs[i] = connect(t, servers[i].Addr)
	}
	patient := redis.NewClient(&redis.Options{Addr: servers[2].Addr, ReadTimeout: -1})
	t.Cleanup(func() { patient.Close() })
	client := dlockQuorum(rdbs[0], rdbs[1], patient)
	servers[2].Stop() // it answers nothing, for ever, and nobody gives up
	must(t, dlockDo(bounded(t), client, t.Name(), func(context.Context) error { return nil }))
	must(t, client.Close())
	servers[2].Kill()
	rs := redsyncQuorum(rdbs[0], rdbs[1], rdbs[2])
	client = dlockQuorum(rdbs[0], rdbs[1], rdbs[2])
	t.Cleanup(func() { client.Close() })
	sides(t, func(t *testing.T) {
		must(t, redsyncDo(bounded(t), rs, t.Name(), func(context.Context) error { return nil }))
	}, func(t *testing.T) {
		must(t, dlockDo(bounded(t), client, t.Name(), func(context.Context) error { return nil }))
	})
}

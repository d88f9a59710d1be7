package porting

import (
	"context"
	"sync"
	"testing"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// valkeylockLocker has the calls of valkeylock.Locker that acquire: valkeylock itself isn't needed
// by anything here.
type valkeylockLocker interface {
	WithContext(ctx context.Context, name string) (context.Context, context.CancelFunc, error)
	TryWithContext(ctx context.Context, name string) (context.Context, context.CancelFunc, error)
	ForceWithContext(ctx context.Context, name string) (context.Context, context.CancelFunc, error)
}

func valkeylockDo(ctx context.Context, locker valkeylockLocker, name string, work job) error {
	ctx, cancel, err := locker.WithContext(ctx, name)
	if err != nil {
		return err
	}
	defer cancel()
	return work(ctx)
}

// Locks has the calls of valkeylock's Locker, so that a ported program keeps its calls.
type Locks struct {
	Client *dlock.Client
}

func (l Locks) WithContext(
	ctx context.Context, name string,
) (context.Context, context.CancelFunc, error) {
	return l.acquire(ctx, name)
}

func (l Locks) TryWithContext(
	ctx context.Context, name string,
) (context.Context, context.CancelFunc, error) {
	return l.acquire(ctx, name, dlock.Wait(0))
}

func (l Locks) ForceWithContext(
	ctx context.Context, name string,
) (context.Context, context.CancelFunc, error) {
	if _, err := l.Client.Locker(name).ForceUnlock(ctx); err != nil {
		return nil, nil, err
	}
	return l.acquire(ctx, name)
}

func (l Locks) acquire(
	ctx context.Context, name string, opts ...dlock.AcquireOption,
) (context.Context, context.CancelFunc, error) {
	h, err := l.Client.Locker(name).Acquire(ctx, opts...)
	if err != nil {
		return nil, nil, err
	}
	release := sync.OnceFunc(func() { h.Release(context.WithoutCancel(ctx)) })
	stop := context.AfterFunc(ctx, release) // valkeylock gives the lock back when ctx ends
	return h.Context(), func() { stop(); release() }, nil
}

func valkeylockOpen(vk valkey.Client) *dlock.Client {
	client := dlock.New(valkeybackend.New(vk))
	return client
}

func TestValkeylock(t *testing.T) {
	t.Parallel()
	server := testservers.Valkey(t)
	vk, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{server.Addr}})
	must(t, err)
	t.Cleanup(vk.Close)
	client := valkeylockOpen(vk)
	t.Cleanup(func() { client.Close() })
	locks := Locks{client}

	t.Run("take and release", func(t *testing.T) {
		t.Parallel()
		sides(t, func(t *testing.T) {
			excludes(t, func(ctx context.Context, work job) error {
				return valkeylockDo(ctx, locks, t.Name(), work)
			})
		}, func(t *testing.T) {
			excludes(t, func(ctx context.Context, work job) error {
				return dlockDo(ctx, client, t.Name(), work)
			})
		})
	})
	t.Run("try", func(t *testing.T) {
		t.Parallel()
		_, cancel, err := locks.TryWithContext(bounded(t), t.Name())
		must(t, err)
		_, _, err = locks.TryWithContext(bounded(t), t.Name())
		wantErr(t, err, dlock.ErrNotAcquired)
		cancel()
		cancel() // as every CancelFunc
		_, cancel, err = locks.TryWithContext(bounded(t), t.Name())
		must(t, err)
		cancel()
	})
	t.Run("take over", func(t *testing.T) {
		t.Parallel()
		ctx, cancel, err := locks.WithContext(bounded(t), t.Name())
		must(t, err)
		defer cancel()
		_, cancelNew, err := locks.ForceWithContext(bounded(t), t.Name())
		must(t, err)
		defer cancelNew()
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), dlock.ErrLost)
	})
	t.Run("the context's end gives it back", func(t *testing.T) {
		t.Parallel()
		ctx, end := context.WithCancel(bounded(t))
		_, cancel, err := locks.WithContext(ctx, t.Name())
		must(t, err)
		defer cancel()
		end()
		must(t, client.Locker(t.Name()).Do(bounded(t), func(context.Context) error { return nil }))
	})
	t.Run("the context's end alone doesn't", func(t *testing.T) {
		t.Parallel()
		ctx, end := context.WithCancel(bounded(t))
		h, err := client.Locker(t.Name()).Acquire(ctx)
		must(t, err)
		end()
		<-h.Context().Done()
		if ok, err := client.Locker(t.Name()).TryLock(bounded(t)); err != nil || ok {
			t.Error(ok, err)
		}
		must(t, h.Release(ctx))
	})
}

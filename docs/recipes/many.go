package recipes

import (
	"context"
	"slices"

	"github.com/seed951563bd/distsync/dlock"
)

func withAllWrong(
	ctx context.Context, client *dlock.Client, ids []string, work func(context.Context) error,
) error {
	for _, id := range ids {
		l := client.Locker("lock:accounts:" + id)
		if err := l.LockContext(ctx); err != nil { // waits while it holds the earlier locks
			return err
		}
		defer l.Unlock()
	}
	return work(ctx)
}

func withAll(
	ctx context.Context, client *dlock.Client, ids []string, work func(context.Context) error,
) error {
	ids = slices.Compact(slices.Sorted(slices.Values(ids))) // without duplicates, which All refuses
	locks := make([]*dlock.Locker, len(ids))
	for i, id := range ids {
		locks[i] = client.Locker("lock:accounts:" + id)
	}
	return dlock.All(locks...).Do(ctx, work)
}

// inBatches calls work for all ids, a hundred at a time.
func inBatches(
	ctx context.Context, client *dlock.Client, ids []string, work func(
		ctx context.Context, ids []string,
	) error,
) error {
	for batch := range slices.Chunk(ids, 100) {
		err := withAll(ctx, client, batch, func(ctx context.Context) error {
			return work(ctx, batch)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// onWhatIsFree calls work for the accounts whose locks are free, and skips the others.
func onWhatIsFree(
	ctx context.Context, client *dlock.Client, ids []string,
	work func(ctx context.Context, id string) error,
) error {
	for _, id := range ids {
		_, err := client.Locker("lock:accounts:"+id).TryDo(ctx, func(ctx context.Context) error {
			return work(ctx, id)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

package recipes

import (
	"context"
	"hash/fnv"
	"net/http"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
)

// A log stores messages in numbered partitions. For each partition, it also stores the position up
// to which the messages were handled.
type log interface {
	// Next waits for the messages that follow the last committed position of a partition.
	Next(ctx context.Context, partition string) (messages []string, position int, err error)

	// Commit fails if the partition has seen a larger token.
	Commit(ctx context.Context, partition string, position int, token uint64) error
}

func consumeWrong(
	ctx context.Context, client *dlock.Client, q log, handle func(context.Context, string) error,
) {
	var all sync.WaitGroup
	for _, partition := range shards.Numbered(12) {
		all.Go(func() {
			client.FencedLocker("orders:"+partition).Do(ctx, func(ctx context.Context) error {
				token, _ := dlock.Token(ctx)
				for ctx.Err() == nil {
					messages, position, err := q.Next(ctx, partition)
					if err != nil {
						return err
					}
					for _, message := range messages {
						if err := handle(ctx, message); err != nil {
							return err
						}
					}
					if err := q.Commit(ctx, partition, position, token); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	all.Wait()
}

// consume handles the messages of this replica's partitions until ctx ends.
func consume(
	ctx context.Context, client *dlock.Client, q log, handle func(context.Context, string) error,
) error {
	set := shards.New(client, "orders", shards.Numbered(12))
	return set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
		for ctx.Err() == nil {
			messages, position, err := q.Next(ctx, s.Name())
			if err != nil {
				return err // Run calls this function again after a second
			}
			for _, message := range messages { // finish a message even during a deploy
				if err := handle(s.Finishing(), message); err != nil {
					return err
				}
			}
			if err := q.Commit(s.Finishing(), s.Name(), position, s.Token()); err != nil {
				return err
			}
		}
		return nil // another replica may take over from here
	})
}

func tenantsWrong(
	ctx context.Context, replica, replicas uint32, tenants []string, job func(
		context.Context, string,
	) error,
) {
	for every := time.Tick(time.Minute); ; {
		select {
		case <-every:
		case <-ctx.Done():
			return
		}
		for _, tenant := range tenants {
			h := fnv.New32a()
			h.Write([]byte(tenant))
			if h.Sum32()%replicas == replica {
				job(ctx, tenant)
			}
		}
	}
}

// tenantsJobs runs job once an hour for each tenant, on the replica that has the tenant's shard.
func tenantsJobs(
	ctx context.Context, client *dlock.Client, tenants func() []string,
	job func(context.Context, string) error,
) error {
	const buckets = 64
	set := shards.New(client, "tenants", shards.Numbered(buckets))
	return set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
		for every := time.Tick(time.Minute); ; {
			select {
			case <-every:
			case <-ctx.Done():
				return nil
			}
			hour := time.Now().UTC().Format("2006-01-02T15")
			for _, tenant := range tenants() { // tenants come and go
				if shards.Of(tenant, buckets) != s.Name() || ctx.Err() != nil {
					continue
				}
				run := func(ctx context.Context) error { return job(ctx, tenant) }
				_, err := client.Once(s.Finishing(), "job:"+tenant, hour, 2*time.Hour, run)
				if err != nil {
					return err
				}
			}
		}
	})
}

func readyWrong(set *shards.Set) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if len(set.Mine()) == 0 {
			http.Error(w, "this replica has no shards", http.StatusServiceUnavailable)
		}
	}
}

// ready responds with status 200 once the replica is a member of the set.
func ready(set *shards.Set) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-set.Joined():
		default:
			http.Error(w, "this replica is no member yet", http.StatusServiceUnavailable)
		}
	}
}

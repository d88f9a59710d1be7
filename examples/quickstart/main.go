// Quickstart shows the effect of a distributed lock. Workers take turns, one of them re-enters the
// lock, and one crashes while it holds the lock. When the lease has expired, the next worker gets
// the lock.
//
//	go run ./examples/quickstart                        # the lock is in memory
//	go run ./examples/quickstart -redis localhost:6379  # the lock is on a server
//
// Every worker has its own client, as if it ran in its own process or on its own machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

const (
	lockName = "quickstart"

	// lease is how long the lock outlives a holder that crashes. A live holder renews it when a
	// third of that time has passed. The default of 30 s would be too long to watch.
	lease = 2 * time.Second
)

func main() {
	addr := flag.String("redis", "",
		"address or URL of a Redis server; without it the lock is in memory")
	beVictim := flag.Bool("victim", false,
		"take the lock and wait to be killed (the program starts itself like that)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr, *beVictim); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // all workers return it; print it once
		}
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr string, beVictim bool) error {
	if addr == "" {
		store := membackend.New()
		return play(ctx, os.Stdout, store, func(ctx context.Context) (*victim, error) {
			return clientVictim(ctx, store)
		})
	}
	rdb, err := connect(ctx, addr)
	if err != nil {
		return err
	}
	defer rdb.Close()
	store := redisbackend.New(rdb)
	if beVictim {
		return holdUntilKilled(ctx, store)
	}
	return play(ctx, os.Stdout, store, func(ctx context.Context) (*victim, error) {
		return processVictim(ctx, addr)
	})
}

// connect returns a client of the server at addr, which is an address or a URL.
func connect(ctx context.Context, addr string) (*redis.Client, error) {
	if !strings.Contains(addr, "://") {
		addr = "redis://" + addr
	}
	opts, err := redis.ParseURL(addr)
	if err != nil {
		return nil, fmt.Errorf("-redis: %w", err)
	}
	logging.Disable() // go-redis also returns what it logs
	rdb := redis.NewClient(opts)
	// A server that can't be reached may come back, so calls that acquire a lock wait for it. But a
	// user who has mistyped the address should get an error at once.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := rdb.Ping(ctx).Err(); err != nil {
		rdb.Close()
		return nil, fmt.Errorf("cannot use the Redis server at %s: %w", opts.Addr, err)
	}
	return rdb, nil
}

// play runs the workers, and writes their actions to out.
func play(
	ctx context.Context, out io.Writer, store backend.Backend, newVictim func(
		context.Context,
	) (*victim, error),
) error {
	fmt.Fprintf(out, "The lock %q ends %v after its holder has renewed it for the last time.\n",
		lockName, lease)
	t := newTimeline(out)
	ann, ben, cleo := newWorker("ann", store, t), newWorker("ben", store, t),
		newWorker("cleo", store, t)
	defer ann.client.Close()
	defer ben.client.Close()
	defer cleo.client.Close()

	t.title("Three workers take turns. ben locks again while holding the lock.")
	err := together(
		func() error { return ann.turn(ctx, ann.work) },
		func() error { return ben.turn(ctx, ben.workReentering) },
		func() error { return cleo.turn(ctx, cleo.work) },
	)
	if err != nil {
		return err
	}

	t.title("dan crashes while holding the lock. The next gets in when dan's lease is over.")
	t.say("dan", "wants the lock")
	dan, err := newVictim(ctx)
	if err != nil {
		return err
	}
	crash := sync.OnceFunc(dan.kill)
	defer crash() // on every return
	t.say("dan", "has the lock")
	return together(
		func() error { return ann.turn(ctx, ann.work) },
		func() error { return cleo.turn(ctx, cleo.work) },
		func() error {
			if err := sleep(ctx, lease/2); err != nil {
				return err
			}
			crash()
			t.crashed("dan", dan.death)
			return nil
		},
	)
}

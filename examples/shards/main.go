// Shards divides 24 shards among replicas, and shows each second which replica runs which shard.
// One replica is killed, and the others take over its shards. A new replica takes its place. Then
// one replica is replaced by a deploy.
//
//	go run ./examples/shards                        # in memory: each replica is a client
//	go run ./examples/shards -redis localhost:6379  # on a server, with real processes
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

const (
	setName = "example"
	count   = 24
	// short enough to watch, but longer than the pauses of processes on a busy machine
	lease = 3 * time.Second
)

func main() {
	addr := flag.String("redis", "", "host:port of a Redis server; without it all is in memory")
	name := flag.String("replica", "",
		"be the replica of that name (the program starts itself like that)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr, *name); err != nil {
		fmt.Fprintln(os.Stderr, "shards:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, name string) error {
	if addr == "" {
		store := membackend.New()
		return play(ctx, os.Stdout, store, func(name string) (*replica, error) {
			return played(store, name), nil
		})
	}
	logging.Disable() // go-redis also returns what it logs
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	store := redisbackend.New(rdb)
	if name == "" {
		if err := rdb.Ping(ctx).Err(); err != nil {
			return fmt.Errorf("cannot use the Redis server at %s: %w", addr, err)
		}
		return play(ctx, os.Stdout, store, func(name string) (*replica, error) {
			return process(addr, name)
		})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // until the input ends
		bufio.NewReader(os.Stdin).ReadString('\n')
		cancel()
	}()
	return work(ctx, store, name)
}

// work runs a replica. In this example, a replica does nothing with its shards but wait.
func work(ctx context.Context, store backend.Backend, name string) error {
	quiet := slog.New(slog.DiscardHandler)
	client := dlock.New(store, dlock.WithClientID(name), dlock.WithLease(lease),
		dlock.WithLogger(quiet))
	defer client.Close()
	set := shards.New(client, setName, shards.Numbered(count), shards.WithLogger(quiet))
	err := set.Run(ctx, func(ctx context.Context, s *shards.Shard) error {
		<-ctx.Done() // real code works on s.Name() until then
		return nil
	})
	if ctx.Err() != nil { // told to end, which isn't a failure
		return nil
	}
	return err
}

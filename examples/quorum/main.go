// Quorum keeps a lock on three servers. It kills one of them while workers use the lock, and the
// workers continue.
//
//	go run ./examples/quorum
//	go run ./examples/quorum -redis localhost:6379,localhost:6380,localhost:6381
//
// The first command starts the servers in this process. The second uses your own servers, one of
// which you can kill yourself.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/quorumbackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

const (
	lockName = "quorum:counter"
	workers  = 3 // each stands for a process
	rounds   = 20
)

func main() {
	addrs := flag.String("redis", "", "host:port of three Redis servers that know nothing of "+
		"each other, with commas between; without it they are in this process")
	flag.Parse()
	redis.SetLogger(silent{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *addrs); err != nil {
		fmt.Fprintln(os.Stderr, "quorum:", err)
		os.Exit(1)
	}
}

// silent is a logger that drops go-redis's messages about the killed server.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// run starts the servers, unless addrs lists some, and calls play.
func run(ctx context.Context, out io.Writer, addrs string) error {
	if addrs != "" {
		servers := strings.Split(addrs, ",")
		if len(servers) < 3 {
			return fmt.Errorf("-redis names %d servers, and it takes three: with fewer none may "+
				"be lost", len(servers))
		}
		return play(ctx, out, servers, func() {
			fmt.Fprintln(out, "kill one of them now: you have 5 seconds")
			select {
			case <-time.After(5 * time.Second):
			case <-ctx.Done():
			}
		})
	}
	var servers []string
	var first *miniredis.Miniredis
	for range 3 {
		s, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer s.Close()
		if first == nil {
			first = s
		}
		servers = append(servers, s.Addr())
	}
	return play(ctx, out, servers, func() {
		first.Close()
		fmt.Fprintln(out, "one of them is killed")
	})
}

// play makes workers increment a counter that only the lock guards. It first holds the lock itself,
// kills a server, and checks that the lock is still held.
func play(ctx context.Context, out io.Writer, servers []string, kill func()) error {
	holder, hangUp := connect(servers)
	defer hangUp()
	lock := holder.Locker(lockName)
	if err := lock.LockContext(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "the lock is held, on %d servers\n", len(servers))

	counter := 0 // guarded by the lock
	var all sync.WaitGroup
	errs := make([]error, workers)
	for i := range workers {
		client, hangUp := connect(servers)
		all.Go(func() {
			defer hangUp()
			for range rounds {
				errs[i] = errors.Join(errs[i], client.Locker(lockName).Do(ctx, func(
					context.Context,
				) error {
					counter++
					return nil
				}))
			}
		})
	}
	kill()

	held, err := lock.IsHeld(ctx)
	if err == nil && !held {
		err = errors.New("the lock is lost")
	}
	if err == nil {
		fmt.Fprintln(out, "the lock is still held")
	}
	if err := errors.Join(err, lock.UnlockContext(ctx)); err != nil {
		return err
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d workers have counted to %d\n", workers, counter)
	return nil
}

// connect returns a client, and a function that closes it and its connections.
func connect(servers []string) (client *dlock.Client, hangUp func()) {
	var stores []backend.Backend
	var rdbs []*redis.Client
	for _, addr := range servers {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		rdbs = append(rdbs, rdb)
		stores = append(stores, redisbackend.New(rdb))
	}
	client = dlock.New(quorumbackend.New(stores...)) // the only line that mentions the quorum
	return client, func() {
		client.Close()
		for _, rdb := range rdbs {
			rdb.Close()
		}
	}
}

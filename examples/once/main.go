// Once has a report made for each day by one of several replicas, all of which start it, with clocks that differ. One replica is
// killed while it makes a report; another makes that one when the lease of the dead one has run out.
//
//	go run ./examples/once                        # the store is in memory, and a replica is a client of its own
//	go run ./examples/once -redis localhost:6379  # the store is a server, and replicas are processes
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

const (
	replicas = 3
	skew     = 200 * time.Millisecond // by how much each clock is behind the one before
	lease    = 3 * time.Second        // short, to be watched; a busy machine may stop a process for a second
	keep     = time.Minute            // far more than the clocks differ
)

var days = []string{"monday", "tuesday", "wednesday"}

func main() {
	addr := flag.String("redis", "", "host:port of a Redis server; without it the store is in memory")
	late := flag.Duration("late", -1, "be a replica whose clock is late by so much (the program starts itself like that)")
	dies := flag.Bool("dies", false, "be the one that is killed")
	job := flag.String("job", "", "name of the job, for that one")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr, *job, *late, *dies); err != nil {
		fmt.Fprintln(os.Stderr, "once:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, job string, late time.Duration, dies bool) error {
	if addr == "" {
		store := membackend.New()
		return play(ctx, os.Stdout, func(late time.Duration, dies bool) process { return clientProcess(ctx, store, "report", late, dies) })
	}
	logging.Disable() // go-redis logs what it returns, too
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	if late >= 0 {
		return replica(ctx, redisbackend.New(rdb), os.Stdout, job, late, dies)
	}
	if err := rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("cannot use the Redis server at %s: %w", addr, err)
	}
	job = fmt.Sprint("report-", time.Now().UnixNano()) // another each time: the server knows what was done a moment ago
	return play(ctx, os.Stdout, func(late time.Duration, dies bool) process { return realProcess(ctx, addr, job, late, dies) })
}

// play starts the replicas, kills one as it makes a report, and says who has made which.
func play(ctx context.Context, out io.Writer, start func(late time.Duration, dies bool) process) error {
	victim := start(0, true)
	defer victim.kill()
	line, err := victim.next(ctx)
	if err != nil {
		return err
	}
	if line != beginning+days[0] {
		return fmt.Errorf("the one that is to die says %q", line)
	}
	fmt.Fprintf(out, "a replica begins the report of %s, and is killed\n", days[0])
	victim.kill()

	var all []process
	for i := range replicas {
		p := start(time.Duration(i)*skew, false)
		defer p.kill()
		all = append(all, p)
	}
	made := make(map[string]int)
	for _, p := range all {
		for range days {
			line, err := p.next(ctx)
			if err != nil {
				return err
			}
			made[line]++
		}
	}
	for _, day := range days {
		fmt.Fprintf(out, "%s: %d of %d replicas made the report, %d heard that it is made\n", day, made[making+day], replicas, made[hearing+day])
	}
	if slices.ContainsFunc(days, func(day string) bool { return made[making+day] != 1 }) {
		return errors.New("each report should be made once")
	}
	return nil
}

// replica has each day's report made, by itself or by another, and says which.
func replica(ctx context.Context, store backend.Backend, out io.Writer, job string, late time.Duration, dies bool) error {
	client := dlock.New(store, dlock.WithLease(lease), dlock.WithLogger(slog.New(slog.DiscardHandler)))
	defer client.Close()
	for _, day := range days {
		if err := pause(ctx, late); err != nil { // its clock says only now that it is time
			return err
		}
		ran, err := once(ctx, client, job, day, func(ctx context.Context) error {
			if dies {
				fmt.Fprintln(out, beginning+day)
				select {} // it is killed, and neither ends its work nor gives anything back
			}
			return pause(ctx, 5*time.Millisecond) // the report
		})
		switch {
		case err != nil:
			return err
		case ran:
			fmt.Fprintln(out, making+day)
		default:
			fmt.Fprintln(out, hearing+day)
		}
	}
	return nil
}

// once has a day's report made, and returns when it is, by whomever. While another makes it nobody knows whether that will succeed: it may
// fail, or die. So look again.
func once(ctx context.Context, client *dlock.Client, job, day string, report func(context.Context) error) (ran bool, err error) {
	for {
		ran, err := client.Once(ctx, job, day, keep, report)
		if !errors.Is(err, dlock.ErrHeld) {
			return ran, err
		}
		if err := pause(ctx, lease/10); err != nil {
			return false, err
		}
	}
}

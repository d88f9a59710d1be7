// Command once runs several replicas, whose clocks differ. All of them try to write each day's
// report, but only one of them does. One replica is killed while it writes a report. Another
// replica writes that report when the lease of the dead one has expired.
//
//	go run ./examples/once                        # in memory: each replica is a client
//	go run ./examples/once -redis localhost:6379  # on a server, with real processes
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
	skew     = 200 * time.Millisecond // clock difference between consecutive replicas
	// short enough to watch, but longer than the pauses of processes on a busy machine
	lease = 3 * time.Second
	keep  = time.Minute // much longer than the clock difference
)

var days = []string{"monday", "tuesday", "wednesday"}

func main() {
	addr := flag.String("redis", "",
		"host:port of a Redis server; without it the store is in memory")
	late := flag.Duration("late", -1,
		"be a replica whose clock is late by so much (the program starts itself like that)")
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
		return play(ctx, os.Stdout, func(late time.Duration, dies bool) process {
			return clientProcess(ctx, store, "report", late, dies)
		})
	}
	logging.Disable() // go-redis also returns what it logs
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	if late >= 0 {
		return replica(ctx, redisbackend.New(rdb), os.Stdout, job, late, dies)
	}
	if err := rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("cannot use the Redis server at %s: %w", addr, err)
	}
	// new for each run, since the server remembers the last run's reports
	job = fmt.Sprint("report-", time.Now().UnixNano())
	return play(ctx, os.Stdout, func(late time.Duration, dies bool) process {
		return realProcess(ctx, addr, job, late, dies)
	})
}

// play starts the replicas, kills one of them during a report, and prints how many replicas made
// each report.
func play(
	ctx context.Context, out io.Writer, start func(late time.Duration, dies bool) process,
) error {
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
		fmt.Fprintf(out, "%s: %d of %d replicas made the report, %d found it made\n", day,
			made[making+day], replicas, made[hearing+day])
	}
	if slices.ContainsFunc(days, func(day string) bool { return made[making+day] != 1 }) {
		return errors.New("each report should be made once")
	}
	return nil
}

// replica makes sure that each day's report is made, by itself or by another replica, and prints
// whether it made the report itself.
func replica(
	ctx context.Context, store backend.Backend, out io.Writer, job string, late time.Duration,
	dies bool,
) error {
	client := dlock.New(store, dlock.WithLease(lease),
		dlock.WithLogger(slog.New(slog.DiscardHandler)))
	defer client.Close()
	for _, day := range days {
		if err := pause(ctx, late); err != nil { // until its clock shows the report's time
			return err
		}
		ran, err := once(ctx, client, job, day, func(ctx context.Context) error {
			if dies {
				fmt.Fprintln(out, beginning+day)
				select {} // wait to be killed, without a release
			}
			return pause(ctx, 5*time.Millisecond) // stands for the report
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

// once makes sure that a day's report is made, by any replica, and returns once it is made. While
// another replica makes the report, this function polls, because that replica may fail or die.
func once(
	ctx context.Context, client *dlock.Client, job, day string, report func(context.Context) error,
) (ran bool, err error) {
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

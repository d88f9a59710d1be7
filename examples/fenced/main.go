// Command fenced shows what a lock alone can't do, and what a fencing token is for: a holder that is paused for
// longer than its lease doesn't know that another has the lock by now, and writes all the same. A resource that
// remembers the largest token it has seen refuses that. A file can't refuse anything; there the token goes
// into its name.
//
//	go run ./examples/fenced                        # the lock is in memory, and the pause is played
//	go run ./examples/fenced -redis localhost:6379  # a process of its own is really stopped
//
// In memory the account is an HTTP server. With Redis it is a key there, which is changed by way of a
// redisbackend.Fence.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

const (
	lockName = "fenced:account"
	lease    = 2 * time.Second // short, to be watched
)

func main() {
	addr := flag.String("redis", "", "host:port of a Redis server; without it the lock is in memory")
	stopped := flag.Bool("stopped", false, "be the holder that is stopped (the program starts itself like that)")
	reports := flag.String("reports", "", "folder of the reports, for that one")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr, *stopped, *reports); err != nil {
		fmt.Fprintln(os.Stderr, "fenced:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr string, stopped bool, reports string) error {
	if addr == "" {
		store := membackend.New()
		server := httptest.NewServer(newAccount(100))
		defer server.Close()
		account := remote(server.URL)
		start := func(ctx context.Context, reports string) (*sleeper, error) {
			return playedSleeper(ctx, store, account, reports)
		}
		return play(ctx, os.Stdout, store, account, start)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	store := redisbackend.New(rdb)
	account := stored{rdb, store, "fenced:balance"}
	if stopped {
		return sleepHere(ctx, store, account, reports)
	}
	if err := rdb.Set(ctx, account.key, 100, 0).Err(); err != nil {
		return err
	}
	start := func(ctx context.Context, reports string) (*sleeper, error) {
		return stoppedSleeper(ctx, addr, reports)
	}
	return play(ctx, os.Stdout, store, account, start)
}

// play lets a holder be paused past its lease, another take its place, and the first one go on.
func play(
	ctx context.Context, out io.Writer, store backend.Backend, account balance,
	start func(ctx context.Context, reports string) (*sleeper, error),
) error {
	reports, err := os.MkdirTemp("", "fenced")
	if err != nil {
		return err
	}
	defer os.RemoveAll(reports)
	client := dlock.New(store, dlock.WithLease(lease))
	defer client.Close()

	sam, err := start(ctx, reports)
	if err != nil {
		return err
	}
	defer sam.end()
	fmt.Fprintf(out, "sam has the lock, with token %d, has read the balance, and is paused (%s)\n", sam.token, sam.pause)

	ann, err := client.FencedLocker(lockName).Acquire(ctx)
	if err != nil {
		return err
	}
	token, _ := ann.Token()
	fmt.Fprintf(out, "ann has got the lock %v after that at the earliest, with token %d\n", lease, token)
	if err := work(ctx, account, reports, token, "ann", 10); err != nil {
		return err
	}
	fmt.Fprintln(out, "ann has written: 110")
	if err := ann.Release(ctx); err != nil {
		return err
	}

	samSays, err := sam.wake()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "sam goes on, without looking at his context, and hears: %s\n", samSays)
	left, err := account.open(ctx, token)
	if err != nil {
		return err
	}
	report, err := latestReport(reports)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the balance is %d\nof two reports the latest is: %s\n", left, report)
	if left != 110 || report != "ann: 110" {
		return errors.New("a stale write went through")
	}
	return nil
}

// work is what a holder does: it writes to the account what it has computed, and a report. It should look at its
// context before each; that a pause can come just after the look is what the token is for.
func work(
	ctx context.Context, account balance, reports string, token uint64, who string, deposit int,
) error {
	before, err := account.open(ctx, token)
	if err != nil {
		return err
	}
	return commit(ctx, account, reports, token, who, before+deposit)
}

// commit writes a new balance, and a report. The report is written first, and is there whatever the account says:
// that is what its name makes harmless.
func commit(
	ctx context.Context, account balance, reports string, token uint64, who string, sum int,
) error {
	if err := writeReport(reports, token, fmt.Sprintf("%s: %d", who, sum)); err != nil {
		return err
	}
	return account.write(ctx, token, sum)
}

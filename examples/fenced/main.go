// Command fenced shows what a lock can't guarantee, and what a fencing token is for. A holder that
// is paused for longer than its lease doesn't know that another client has acquired the lock
// meanwhile, and writes anyway. A resource that remembers the largest token that it has seen
// refuses that write. A file can't refuse a write, so the token becomes part of the file's name.
//
//	go run ./examples/fenced                        # in memory, with a simulated pause
//	go run ./examples/fenced -redis localhost:6379  # on a server, with a process that is stopped
//
// With the store in memory, the account is an HTTP server. With Redis, the account is a key in
// Redis, which is changed through a redisbackend.Fence.
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
	lease    = 2 * time.Second // short enough to watch the pause
)

func main() {
	addr := flag.String("redis", "",
		"host:port of a Redis server; without it the lock is in memory")
	stopped := flag.Bool("stopped", false,
		"be the holder that is stopped (the program starts itself like that)")
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

// play pauses a holder for longer than its lease. Meanwhile another client acquires the lock and
// writes. Then the first holder continues.
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
	fmt.Fprintf(out, "sam has the lock, with token %d, has read the balance, and is paused (%s)\n",
		sam.token, sam.pause)

	ann, err := client.FencedLocker(lockName).Acquire(ctx)
	if err != nil {
		return err
	}
	token, _ := ann.Token()
	fmt.Fprintf(out, "ann gets the lock, %v after that at the earliest, with token %d\n", lease,
		token)
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
	fmt.Fprintf(out, "sam goes on without a look at the context, and gets: %s\n", samSays)
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

// work does a holder's work: it writes a new balance, and a report. Real code should check its
// context before each write. The token protects against a pause just after that check.
func work(
	ctx context.Context, account balance, reports string, token uint64, who string, deposit int,
) error {
	before, err := account.open(ctx, token)
	if err != nil {
		return err
	}
	return commit(ctx, account, reports, token, who, before+deposit)
}

// commit writes a report, and then the balance. The report exists even if the account refuses the
// balance. That does no harm, because the report's name contains the token.
func commit(
	ctx context.Context, account balance, reports string, token uint64, who string, sum int,
) error {
	if err := writeReport(reports, token, fmt.Sprintf("%s: %d", who, sum)); err != nil {
		return err
	}
	return account.write(ctx, token, sum)
}

// Leader runs a loop in one of three processes, the leader. The first leader is killed, and another
// process takes over. That one is paused for longer than its lease, and the third process takes
// over. When the third process has ended, the paused one leads again.
//
//	go run ./examples/leader                        # in memory: each process is a client
//	go run ./examples/leader -redis localhost:6379  # on a server, with real processes
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

const (
	electionName = "leader:reports"
	// short enough to watch, but longer than the pauses of processes on a busy machine
	lease     = 3 * time.Second
	processes = 3
)

func main() {
	addr := flag.String("redis", "",
		"host:port of a Redis server; without it the election is in memory")
	candidate := flag.Bool("candidate", false,
		"be one of the processes (the program starts itself like that)")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, *candidate); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr string, candidate bool) error {
	if addr == "" {
		store := membackend.New()
		return play(ctx, os.Stdout, func(ctx context.Context, says func(line)) (*process, error) {
			return playedProcess(ctx, store, says), nil
		})
	}
	logging.Disable() // go-redis also returns what it logs
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	if !candidate {
		// A candidate waits while the server can't be reached. But a user who has mistyped the
		// address should get an error at once.
		if err := rdb.Ping(ctx).Err(); err != nil {
			return fmt.Errorf("cannot use the Redis server at %s: %w", addr, err)
		}
		return play(ctx, os.Stdout, func(ctx context.Context, says func(line)) (*process, error) {
			return realProcess(ctx, addr, says)
		})
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() { // until the input ends
		bufio.NewReader(os.Stdin).ReadString('\n')
		cancel()
	}()
	return campaign(ctx, redisbackend.New(rdb), func(l line) { fmt.Println(l.What, l.Term) })
}

// play kills the first leader, pauses the second, ends the third, and reports each new leader.
func play(
	ctx context.Context, out io.Writer, start func(
		ctx context.Context, says func(line),
	) (*process, error),
) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a run takes a few seconds
	defer cancel()
	w := &works{lines: make(chan line, 1000)}
	var all [processes]*process
	for i := range all {
		p, err := start(ctx, func(l line) { w.hear(ctx, i, l) })
		if err != nil {
			return err
		}
		defer p.kill()
		all[i] = p
	}
	first, err := w.await(ctx, "leads")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d processes campaign, and one leads: term %d\n", processes, first.Term)
	if err := w.goOn(ctx, first); err != nil {
		return err
	}

	all[first.from].kill()
	second, err := w.await(ctx, "leads")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "it is killed, and another leads when its lease is over: term %d\n",
		second.Term)
	if err := w.goOn(ctx, second); err != nil {
		return err
	}

	if err := all[second.from].pause(); err != nil {
		return err
	}
	third, err := w.await(ctx, "leads")
	if err != nil {
		return err
	}
	fmt.Fprintf(out,
		"the new leader is paused, and the third leads when its lease is over: term %d\n",
		third.Term)
	if err := all[second.from].resume(); err != nil {
		return err
	}
	over, err := w.await(ctx, "lost")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the one that was paused goes on, and finds that it has lost term %d\n",
		over.Term)
	if err := w.goOn(ctx, third); err != nil {
		return err
	}

	if err := all[third.from].end(); err != nil {
		return err
	}
	fourth, err := w.await(ctx, "leads")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the third ends, and the one that was paused leads at once: term %d\n",
		fourth.Term)
	if first.from == second.from || third.from == first.from || third.from == second.from ||
		over.from != second.from || over.Term != second.Term || fourth.from != second.from {
		return fmt.Errorf("the wrong ones have led: %v, %v, %v, %v, and %v has ended", first,
			second, third, fourth, over)
	}
	return all[fourth.from].end()
}

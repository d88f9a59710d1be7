// Limit makes workers in several processes call a service that allows a limited number of
// simultaneous calls. One of the processes is killed during its calls. Its permits become free when
// its lease expires.
//
//	go run ./examples/limit                        # in memory: each process is a client
//	go run ./examples/limit -redis localhost:6379  # on a server, with real processes
package main

import (
	"context"
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
	semaphoreName = "limit:service"
	atOnce        = 3 // the service's limit on simultaneous calls
	lease         = 2 * time.Second

	processes = 3
	workers   = 4  // in each process
	calls     = 15 // per worker; they outlast the victim's lease
)

func main() {
	addr := flag.String("redis", "",
		"host:port of a Redis server; without it the semaphore is in memory")
	service := flag.String("service", "",
		"URL of the service: be one of the processes (the program starts itself like that)")
	dies := flag.Bool("dies", false, "be the one that is killed")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr, *service, *dies); err != nil {
		fmt.Fprintln(os.Stderr, "limit:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr, service string, dies bool) error {
	if addr == "" {
		store := membackend.New()
		return play(ctx, os.Stdout, store, func(url string, dies bool) process {
			return clientProcess(ctx, store, url, dies)
		})
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	store := redisbackend.New(rdb)
	if service != "" {
		return work(ctx, store, service, dies)
	}
	return play(ctx, os.Stdout, store, func(url string, dies bool) process {
		return realProcess(ctx, addr, url, dies)
	})
}

// play starts the service and the processes that call it, kills one of them, and reports the
// result.
func play(
	ctx context.Context, out io.Writer, store backend.Backend, start func(
		url string, dies bool,
	) process,
) error {
	s := newService()
	server := httptest.NewServer(s)
	defer server.Close()
	client := dlock.New(store)
	defer client.Close()
	permits := client.Semaphore(semaphoreName, atOnce)

	victim := start(server.URL, true)
	defer victim.kill()
	if err := s.await(ctx, victimsCalls); err != nil {
		return fmt.Errorf("the one that is to die hasn't begun: %w", err)
	}
	left, err := permits.Available(ctx)
	if err != nil {
		return err
	}
	var all []process
	for range processes {
		p := start(server.URL, false)
		defer p.kill()
		all = append(all, p)
	}
	fmt.Fprintf(out, "a process with %d permits of %d is killed: %d left\n", victimsCalls, atOnce,
		left)
	victim.kill()
	for _, p := range all {
		if err := p.wait(); err != nil {
			return err
		}
	}
	left, err = permits.Available(ctx)
	if err != nil {
		return err
	}
	served, most := s.figures()
	fmt.Fprintf(out, "%d processes made %d calls, never more than %d at once\n", processes, served,
		most)
	fmt.Fprintf(out, "its permits came back when its lease was over: %d left\n", left)
	if most > atOnce || served != processes*workers*calls || left != atOnce {
		return fmt.Errorf("there should be no more than %d at once, %d calls, and %d permits",
			atOnce, processes*workers*calls, atOnce)
	}
	return nil
}

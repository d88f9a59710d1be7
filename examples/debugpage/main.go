// Command debugpage serves the page of package lockdebug for a client that holds locks, waits for
// locks, and has lost some.
//
//	go run ./examples/debugpage                        # the locks are in memory
//	go run ./examples/debugpage -redis localhost:6379  # the locks are on a server
//
// It runs until it gets a signal, or for the duration given by the -for flag.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/lockdebug"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

func main() {
	addr := flag.String("redis", "",
		"host:port of a Redis server; without it the locks are in memory")
	listen := flag.String("addr", "localhost:8080",
		"where to serve the page; whoever gets there sees it")
	d := flag.Duration("for", 0, "how long to serve it; 0: until a signal")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *addr, *listen, *d); err != nil {
		fmt.Fprintln(os.Stderr, "debugpage:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, redisAddr, addr string, d time.Duration) error {
	var store backend.Backend = membackend.New()
	if redisAddr != "" {
		rdb := redis.NewClient(&redis.Options{Addr: redisAddr})
		defer rdb.Close()
		store = redisbackend.New(rdb, redisbackend.WithPrefix("debugpage:"))
	}
	// two clients, which stand for two processes
	here, elsewhere := dlock.New(store, dlock.WithLease(lease)),
		dlock.New(store, dlock.WithLease(lease))
	defer here.Close()
	defer elsewhere.Close()

	s, err := play(ctx, here, elsewhere)
	defer s.end()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/locks", lockdebug.Handler(here))
	if d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	return serve(ctx, out, addr, mux)
}

// serve serves until ctx ends.
func serve(ctx context.Context, out io.Writer, addr string, h http.Handler) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "http://%s/debug/locks\n", l.Addr())
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	stopped := context.AfterFunc(ctx, func() { server.Close() })
	defer stopped()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Command prometheus serves the measurements of oteldlock to a Prometheus server. Meanwhile workers
// of two clients, which stand for two processes, compete for a few locks.
//
//	go -C oteldlock/examples/prometheus run . # and then: curl localhost:2112/metrics
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/oteldlock"
)

func main() {
	addr := flag.String("listen", "localhost:2112", "host:port to serve /metrics at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr); err != nil {
		fmt.Fprintln(os.Stderr, "prometheus:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/metrics\n", listener.Addr())
	return serve(ctx, listener)
}

// serve runs the workers, and serves their metrics, until ctx ends.
func serve(ctx context.Context, listener net.Listener) error {
	exporter, err := prometheus.New()
	if err != nil {
		return err
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	defer provider.Shutdown(context.Background())
	otel.SetMeterProvider(provider)

	trace, err := oteldlock.New(oteldlock.WithNameLabel(group))
	if err != nil {
		return err
	}
	store := membackend.New() // in production redisbackend.New(rdb), for example
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	for range 2 {
		client := dlock.New(store, dlock.WithTrace(trace), dlock.WithLease(time.Second),
			dlock.WithLogger(slog.New(slog.DiscardHandler)))
		defer client.Close()
		for range 4 {
			workers.Go(func() { work(ctx, client) })
		}
	}
	defer func() { // before the clients are closed
		cancel()
		workers.Wait()
	}()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.Handler())
	server := &http.Server{Handler: mux}
	end := context.AfterFunc(ctx, func() { server.Close() })
	defer end()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// group returns the part of a lock's name that gets its own time series, such as "order" for
// "order:42".
func group(name string) string {
	group, _, _ := strings.Cut(name, ":")
	return group
}

// work acquires one lock after another until ctx ends. Occasionally it force-releases one.
func work(ctx context.Context, client *dlock.Client) {
	for ctx.Err() == nil {
		order := client.Locker(fmt.Sprintf("order:%d", rand.IntN(5)))
		order.Do(ctx, pause, dlock.Wait(20*time.Millisecond))
		client.RWLocker("prices").Reader().Do(ctx, pause)
		if rand.IntN(100) == 0 {
			order.ForceUnlock(ctx)
			client.RWLocker("prices").Writer().Do(ctx, pause)
		}
	}
}

// pause stands in for work that takes a few milliseconds.
func pause(ctx context.Context) error {
	select {
	case <-time.After(rand.N(20 * time.Millisecond)):
	case <-ctx.Done(): // also if the lock is lost
	}
	return context.Cause(ctx)
}

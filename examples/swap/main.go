// Command swap runs the same program on any of the stores. Only the line that creates the backend
// differs.
//
//	go run ./examples/swap -backend memory
//	go run ./examples/swap -backend redis    -addr localhost:6379
//	go run ./examples/swap -backend valkey   -addr localhost:6379
//	go run ./examples/swap -backend etcd     -addr localhost:2379
//	go run ./examples/swap -backend postgres -addr postgres://app@localhost:5432/orders
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/postgresbackend"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func main() {
	store := flag.String("backend", "memory", "memory, redis, valkey, etcd or postgres")
	addr := flag.String("addr", "",
		"host:port of the server, or a URL of PostgreSQL (none for memory)")
	flag.Parse()
	if err := run(*store, *addr); err != nil {
		fmt.Fprintln(os.Stderr, "swap:", err)
		os.Exit(1)
	}
}

func run(store, addr string) error {
	b, hangUp, err := connect(store, addr)
	if err != nil {
		return err
	}
	defer hangUp()
	return count(b)
}

// connect returns a backend, and a function that closes its connections.
func connect(store, addr string) (backend.Backend, func(), error) {
	switch store {
	case "memory":
		return membackend.New(), func() {}, nil
	case "redis":
		client := redis.NewClient(&redis.Options{Addr: addr})
		return redisbackend.New(client), func() { client.Close() }, nil
	case "valkey":
		client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{addr}})
		if err != nil {
			return nil, nil, err
		}
		return valkeybackend.New(client), client.Close, nil
	case "etcd":
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
		if err != nil {
			return nil, nil, err
		}
		return etcdbackend.New(client), func() { client.Close() }, nil
	case "postgres":
		b, err := postgresbackend.Connect(addr, postgresbackend.WithCreate())
		if err != nil {
			return nil, nil, err
		}
		return b, b.Close, nil
	default:
		return nil, nil, fmt.Errorf("no backend is called %q", store)
	}
}

// count lets two clients count to ten together, as two processes would. The counter is guarded only
// by the lock.
func count(b backend.Backend) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var (
		all    sync.WaitGroup
		n      int
		failed = make([]error, 2)
	)
	for i, name := range []string{"ann", "ben"} {
		all.Go(func() {
			client := dlock.New(b)
			defer client.Close()
			l := client.Locker("swap")
			for range 5 {
				err := l.Do(ctx, func(context.Context) error {
					n++
					fmt.Printf("%s: %d\n", name, n)
					return nil
				})
				if err != nil {
					failed[i] = err
					return
				}
			}
		})
	}
	all.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

package quorumbackend_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/quorumbackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

// A lock that outlives one of three servers.
func Example() {
	var servers []*miniredis.Miniredis
	var stores []backend.Backend
	for range 3 {
		server, err := miniredis.Run() // servers would be running already
		if err != nil {
			panic(err)
		}
		defer server.Close()
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer rdb.Close()
		servers, stores = append(servers, server), append(stores, redisbackend.New(rdb))
	}
	client := dlock.New(quorumbackend.New(stores...))
	defer client.Close()

	l := client.Locker("orders:42")
	l.Lock()
	servers[0].Close()
	held, err := l.IsHeld(context.Background())
	fmt.Println("held:", held, err)
	l.Unlock()

	fmt.Println("and again:", l.LockContext(context.Background()))
	l.Unlock()
	// Output:
	// held: true <nil>
	// and again: <nil>
}

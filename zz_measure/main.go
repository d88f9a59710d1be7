package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

func session(kind, addr string) backend.Session {
	if kind == "valkey" {
		c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{addr}})
		if err != nil { panic(err) }
		return valkeybackend.New(c).Open()
	}
	return redisbackend.New(redis.NewClient(&redis.Options{Addr: addr})).Open()
}

func main() {
	ctx := context.Background()
	addr := os.Args[2]
	c := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute})
	switch os.Args[1] {
	case "fill":
		for i := 0; i < 1000000; i += 1000 {
			p := c.Pipeline()
			for j := i; j < i+1000; j++ {
				k := fmt.Sprint("some:data:", j)
				switch j % 4 {
				case 0, 1:
					p.Set(ctx, k, "v", 0)
				case 2:
					p.HSet(ctx, k, "name", "bob", "visits", j)
				case 3:
					p.HSet(ctx, k, "n", j)
					p.Expire(ctx, k, time.Hour)
				}
			}
			if _, err := p.Exec(ctx); err != nil { panic(err) }
		}
		s := session("redis", addr)
		for i := range 1000 {
			s.Acquire(ctx, backend.AcquireRequest{Name: fmt.Sprint("lock:", i), Owner: "me:1", Lease: time.Hour})
		}
		fmt.Println(c.DBSize(ctx).Val())
	case "neighbour": // until stdin closes
		done := make(chan bool)
		go func() { b := make([]byte, 1); os.Stdin.Read(b); close(done) }()
		for c.Ping(ctx).Err() != nil {}
		var all []time.Duration
		for {
			select {
			case <-done:
				slices.Sort(all)
				q := func(p float64) time.Duration { return all[int(p*float64(len(all)-1))].Round(time.Microsecond) }
				fmt.Printf("n %d p50 %v p99 %v p99.9 %v max %v", len(all), q(.5), q(.99), q(.999), q(1))
				return
			default:
			}
			t := time.Now()
			if err := c.Ping(ctx).Err(); err != nil { panic(err) }
			all = append(all, time.Since(t))
			time.Sleep(200*time.Microsecond)
		}
	case "measure":
		for _, kind := range []string{"redis", "valkey"} {
			for _, prefix := range []string{"none", "lock:", "", "none"} {
				n := exec.Command(os.Args[0], "neighbour", addr)
				in, _ := n.StdinPipe()
				var out strings.Builder
				n.Stdout, n.Stderr = &out, os.Stderr
				n.Start()
				time.Sleep(300*time.Millisecond)
				begin := time.Now()
				locks, pages := 0, 0
				if prefix == "none" {
					time.Sleep(8*time.Second)
				} else {
					s := session(kind, addr)
					req := backend.ListRequest{Prefix: prefix, Limit: 1000}
					for {
						res, err := s.(backend.Lister).List(ctx, req)
						if err != nil { panic(err) }
						locks += len(res.Locks); pages++
						if res.Next == "" { break }
						req.After = res.Next
					}
				}
				took := time.Since(begin)
				in.Close()
				n.Wait()
				fmt.Printf("%s prefix %q: %d pages, %d locks in %v; neighbour: %s\n", kind, prefix, pages, locks, took.Round(time.Millisecond), out.String())
			}
		}
	}
}

package history_test

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/history"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/quorumbackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

// A poll is three servers that vote, and the clients' ways to each.
type poll struct {
	*testing.T
	servers []*testservers.Server
	proxies [][]*faults.Proxy // of each server, one for each client
	lease   time.Duration
}

// TestQuorum has one server of three suffer at a time.
func TestQuorum(t *testing.T) {
	t.Parallel()
	seed := history.Seed(t)
	p := &poll{T: t, lease: time.Second, proxies: make([][]*faults.Proxy, 3)}
	for range p.proxies {
		p.servers = append(p.servers, testservers.Redis(t))
	}
	r := history.New()
	var clients []*dlock.Client
	for range sites {
		c := dlock.New(r.Watch(p.connect()), dlock.WithLease(p.lease),
			dlock.WithLogger(slog.New(slog.DiscardHandler)))
		t.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	locks := []history.Lock{{Name: "a"}, {Name: "b", Kind: backend.Write}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i, lock := range locks {
			history.Workload{
				Seed: seed + uint64(i), Locks: []history.Lock{lock}, Users: 3, Lease: p.lease,
				Pace:   250 * time.Millisecond,
				Rounds: 50, Length: 2 * time.Second,
			}.Run(t.Context(), r, clients)
		}
	}()
	p.harm(rand.New(rand.NewPCG(seed, 1)), done)
	for _, lock := range locks {
		testservers.Until(t, lock.Name+" is free", func() bool {
			free, err := lock.IsFree(t.Context(), clients[0])
			return err == nil && free
		})
	}
	t.Logf("%d calls", r.Count())
	r.Verify(t, seed, history.Rules{Late: time.Minute, Voted: true})
}

// connect returns the stores of a client.
func (p *poll) connect() backend.Backend {
	var stores []backend.Backend
	for i, s := range p.servers {
		proxy, err := faults.NewProxy(s.Addr, faults.RESP)
		if err != nil {
			p.Fatal(err)
		}
		p.Cleanup(func() { proxy.Close() })
		p.proxies[i] = append(p.proxies[i], proxy)
		rdb := redis.NewClient(&redis.Options{
			Addr: proxy.Addr(), DialTimeout: impatience, ReadTimeout: impatience,
			WriteTimeout: impatience,
		})
		p.Cleanup(func() { rdb.Close() })
		stores = append(stores, redisbackend.New(rdb))
	}
	return quorumbackend.New(stores...)
}

// harm breaks the ways to one server after the other, and the server, until done is closed; then
// all is well. A server that comes back empty has been away for longer than any lease.
func (p *poll) harm(dice *rand.Rand, done <-chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(dice.Int64N(int64(p.lease / 4)))):
		}
		victim := dice.IntN(len(p.servers))
		s, ways := p.servers[victim], p.proxies[victim]
		way := ways[dice.IntN(len(ways))]
		stays := time.Duration(dice.Int64N(int64(p.lease)))
		switch dice.IntN(8) {
		case 0:
			way.Cut()
		case 1:
			way.LoseReply(isScript)
		case 2:
			for _, way := range ways {
				way.Block(faults.Both)
			}
			time.Sleep(stays)
			for _, way := range ways {
				way.Unblock(faults.Both)
			}
		case 3:
			way.Block(faults.ToClient)
			time.Sleep(stays)
			way.Unblock(faults.ToClient)
		case 4:
			_, deliver := way.Hold(isScript)
			time.Sleep(stays)
			deliver()
		case 5:
			s.Stop()
			time.Sleep(stays)
			s.Cont()
		case 6:
			s.Kill()
			time.Sleep(p.lease * 3 / 2)
			s.Restart()
		default:
			way.SetDelay(50 * time.Millisecond)
			time.Sleep(stays)
			way.SetDelay(0)
		}
	}
}

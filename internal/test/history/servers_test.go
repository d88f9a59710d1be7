package history_test

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/test/history"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/postgresbackend"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// A site is a server, the clients' ways to it, and what can be done to either.
type site struct {
	*testing.T
	server  *testservers.Server // nil: the store is in this process
	proxies []*faults.Proxy     // one for each client
	step    func(faults.Request) bool
	scripts bool // the server has a cache of scripts
	lasting bool // numbers are told by the server's clock, too
	connect func(addr string) backend.Backend
	lease   time.Duration
	wipe    func() // restarts the server without its data; nil: to restart it is enough
}

func TestRedis(t *testing.T) {
	t.Parallel()
	s := &site{
		T: t, server: testservers.Redis(t), step: isScript, scripts: true, lasting: true,
		lease: time.Second,
	}
	s.connect = func(addr string) backend.Backend {
		rdb := redis.NewClient(&redis.Options{
			Addr: addr, DialTimeout: impatience, ReadTimeout: impatience, WriteTimeout: impatience,
		})
		t.Cleanup(func() { rdb.Close() })
		return redisbackend.New(rdb)
	}
	s.run(faults.RESP)
}

func TestValkey(t *testing.T) {
	t.Parallel()
	s := &site{
		T: t, server: testservers.Valkey(t), step: isScript, scripts: true, lasting: true,
		lease: time.Second,
	}
	s.connect = func(addr string) backend.Backend {
		opts := valkey.ClientOption{
			InitAddress: []string{addr}, DisableCache: true, ConnWriteTimeout: impatience,
		}
		opts.Dialer.Timeout = impatience
		var vk valkey.Client
		testservers.Until(t, "a client is connected", func() (ok bool) { // it wants that at once
			c, closeAll, err := wiretest.NewValkey(opts)
			t.Cleanup(closeAll)
			vk = c
			return err == nil
		})
		return valkeybackend.New(vk)
	}
	s.run(faults.RESP)
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	s := &site{T: t, server: testservers.Etcd(t), step: isTransaction, lease: 2 * time.Second}
	s.connect = func(addr string) backend.Backend {
		cli, err := clientv3.New(clientv3.Config{
			Endpoints: []string{addr}, Logger: zap.NewNop(), DialTimeout: impatience,
			DialKeepAliveTime: time.Second, DialKeepAliveTimeout: impatience,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cli.Close() })
		return etcdbackend.New(cli)
	}
	s.run(faults.HTTP2)
}

// A server that has lost its data has its tables, which are empty: another was restored, or they
// are unlogged.
func TestPostgres(t *testing.T) {
	t.Parallel()
	s := &site{
		T: t, server: testservers.Postgres(t), step: isFunction, lasting: true, lease: time.Second,
	}
	s.server.SQL(postgresbackend.Schema(postgresbackend.DefaultSchema))
	s.wipe = func() {
		s.server.Restart()
		// A client may be in a function that reads the tables in another order.
		s.server.SQL(`DO $$ BEGIN LOOP
			BEGIN
				TRUNCATE distsync.distsync_v1_lock, distsync.distsync_v1_part,
					distsync.distsync_v1_latch;
				EXIT;
			EXCEPTION WHEN deadlock_detected THEN
			END;
		END LOOP; END $$`)
	}
	s.connect = func(addr string) backend.Backend {
		config, err := pgxpool.ParseConfig(testservers.PostgresURL(addr))
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.ConnectTimeout = impatience
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return postgresbackend.New(pool)
	}
	s.run(faults.Bytes)
}

// TestMemory has no network to suffer from. Its clients suffer from others that force the lock.
func TestMemory(t *testing.T) {
	t.Parallel()
	store := membackend.New()
	s := &site{
		T: t, connect: func(string) backend.Backend { return store }, lease: 200 * time.Millisecond,
	}
	s.run(0)
}

// impatience is when a client gives up waiting for the server. Calls don't wait for that.
const impatience = 700 * time.Millisecond

func isScript(r faults.Request) bool {
	return len(r.Words) > 0 && strings.HasPrefix(strings.ToLower(r.Words[0]), "eval")
}

func isFunction(r faults.Request) bool { return bytes.Contains(r.Bytes, []byte(".distsync_v1_")) }

func isTransaction(r faults.Request) bool { return strings.HasSuffix(r.Method, "/Txn") }

const sites = 4 // where there is a client

// run runs random users of some clients while their connections break, and checks the history. Now
// and then they turn to other locks: after a while, requests without answers could explain too much
// about one lock.
func (s *site) run(protocol faults.Protocol) {
	seed := history.Seed(s)
	r := history.New()
	var clients []*dlock.Client
	var limits backend.Limits
	for range sites {
		addr := ""
		if s.server != nil {
			p, err := faults.NewProxy(s.server.Addr, protocol)
			if err != nil {
				s.Fatal(err)
			}
			s.Cleanup(func() { p.Close() })
			s.proxies = append(s.proxies, p)
			addr = p.Addr()
		}
		b := s.connect(addr)
		limits = b.Limits()
		c := dlock.New(r.Watch(b), dlock.WithLease(s.lease),
			dlock.WithLogger(slog.New(slog.DiscardHandler)))
		s.Cleanup(func() { c.Close() })
		clients = append(clients, c)
	}
	locks := [][]history.Lock{
		{{Name: "a"}, {Name: "b", Kind: backend.Permits, Permits: 3}},
		{{Name: "c", Kind: backend.Write}, {Name: "d", Kind: backend.Fenced}},
		{{Name: "e", Kind: backend.Fair}, {Name: "f", Kind: backend.Write}},
	}
	for i := range locks {
		locks[i] = slices.DeleteFunc(locks[i], func(l history.Lock) bool {
			return !limits.Kinds.Has(l.Kind)
		})
	}
	d := &division{
		TB: s, recorder: r, clients: clients, lease: s.lease, length: 3 * time.Second,
		forces: s.server == nil,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range locks {
			history.Workload{
				Seed: seed + uint64(i), Locks: locks[i], Users: 3, Lease: s.lease,
				Pace:   250 * time.Millisecond,
				Rounds: 50, Length: time.Second, Forces: s.server == nil,
			}.Run(s.Context(), r, clients)
		}
		d.run(s.Context(), seed)
	}()
	if s.server == nil {
		<-done
	} else {
		s.harm(r, rand.New(rand.NewPCG(seed, 1)), done)
	}
	held := slices.Concat(locks...)
	for _, shard := range divided {
		held = append(held, lockOf(shard))
	}
	for _, lock := range held {
		testservers.Until(s, lock.Name+" is free", func() bool {
			free, err := lock.IsFree(s.Context(), clients[0])
			return err == nil && free
		})
	}
	s.Logf("%d calls", r.Count())
	r.Verify(s, seed, history.Rules{Late: time.Minute, Blink: limits.LeaseStep, Lasting: s.lasting})
}

// harm breaks the ways to the server, and the server, until done is closed; then all is well.
func (s *site) harm(r *history.Recorder, dice *rand.Rand, done <-chan struct{}) {
	pause := func(most time.Duration) bool {
		select {
		case <-done:
			return false
		case <-time.After(time.Duration(dice.Int64N(int64(most)))):
			return true
		}
	}
	restartAt := 3 + dice.IntN(10)
	for i := 0; pause(250 * time.Millisecond); i++ {
		p := s.proxies[dice.IntN(len(s.proxies))]
		if i == restartAt {
			wipe := s.wipe
			if wipe == nil {
				wipe = s.server.Restart
			}
			r.Wipe("the server is restarted, empty", wipe)
			continue
		}
		switch dice.IntN(8) {
		case 0:
			p.Cut()
		case 1, 2:
			p.LoseReply(s.step)
		case 3:
			p.Block(faults.ToServer | faults.ToClient)
			pause(s.lease)
			if dice.IntN(2) == 0 {
				p.Cut()
			}
			p.Unblock(faults.ToServer | faults.ToClient)
		case 4:
			p.Block(faults.ToClient)
			pause(s.lease)
			p.Unblock(faults.ToClient)
		case 5:
			_, deliver := p.Hold(s.step)
			pause(s.lease)
			deliver()
		case 6:
			s.server.Stop()
			pause(s.lease / 2)
			s.server.Cont()
		default:
			if s.scripts {
				s.server.Do("SCRIPT", "FLUSH")
			}
		}
	}
}

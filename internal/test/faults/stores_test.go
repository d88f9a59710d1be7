package faults_test

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/etcdbackend"
	"github.com/seed951563bd/distsync/internal/redisson"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
	"github.com/seed951563bd/distsync/postgresbackend"
	"github.com/seed951563bd/distsync/redisbackend"
	"github.com/seed951563bd/distsync/valkeybackend"
)

// A store is a column of the table. It has a kind of server, and a client library for it.
type store struct {
	name     string
	protocol faults.Protocol
	lease    time.Duration // short

	start   func(t testing.TB) *testservers.Server
	connect func(addrs ...string) (b backend.Backend, closeClient func(), err error)

	// requests returns the requests of each step for a kind of lock. Faults lose or delay one of
	// them at a time.
	requests func(backend.Kind) map[step][]func(faults.Request) bool

	// looks returns the last request of a waiter that finds the lock held
	looks func(backend.Kind) func(faults.Request) bool

	empty     func(t *testing.T, addr string) bool      // no data of locks is stored
	unlocked  func(t *testing.T, addr string) bool      // no lock is stored; nil: use empty
	waiting   func(t *testing.T, addr, name string) int // calls in line for a fair lock
	deleteKey func(t *testing.T, addr, name string)
	restart   func(*testservers.Server) // without its data; nil: use Server.Restart
}

// A step is a kind of step of a backend.
type step int

const (
	acquire step = iota // also a re-entry
	partial             // a release of one of several holds
	release             // a release of the last hold
	renew
	subscribe
)

var stores = []*store{
	redisStore("redis", testservers.Redis, connectRedis),
	redisStore("valkey", testservers.Valkey, connectValkey),
	etcdStore,
	postgresStore,
}

type connector = func(addrs ...string) (backend.Backend, func(), error)

func redisStore(
	name string, start func(testservers.TB, ...string) *testservers.Server, connect connector,
) *store {
	return &store{
		name:     name,
		protocol: faults.RESP,
		lease:    time.Second,
		start:    func(t testing.TB) *testservers.Server { return start(t) },
		connect:  connect,
		requests: scripts,
		looks: func(k backend.Kind) func(faults.Request) bool {
			if k == backend.Fair { // a waiter in line keeps its place
				return runs(redisson.Dialect{}.KeepPlaces(
					backend.PlacesRequest{Owners: []string{""}})[0].Script)
			}
			return scripts(k)[acquire][0]
		},
		empty: func(t *testing.T, addr string) bool {
			keys, err := testservers.Do(addr, "EVAL", leftKeys, "0")
			must(t, err)
			return keys == "0"
		},
		waiting: func(t *testing.T, addr, name string) int {
			n, err := testservers.Do(addr, "LLEN", "redisson_lock_queue:{"+name+"}")
			must(t, err)
			waiting, err := strconv.Atoi(n)
			must(t, err)
			return waiting
		},
		deleteKey: func(t *testing.T, addr, name string) {
			_, err := testservers.Do(addr, "DEL", name)
			must(t, err)
		},
	}
}

// leftKeys counts the keys, except those that stay. These have the last tokens of fenced locks, and
// the numbers of permits of semaphores.
const leftKeys = `
local n = 0
for _, key in ipairs(redis.call('keys', '*')) do
	if redis.call('type', key).ok ~= 'string' or redis.call('pttl', key) ~= -1 then
		n = n + 1
	end
end
return tostring(n)`

// scripts returns the requests that run the scripts of a kind of lock.
func scripts(k backend.Kind) map[step][]func(faults.Request) bool {
	acquired, released := redisson.Acquire(backend.AcquireRequest{}),
		redisson.Release(backend.ReleaseRequest{})
	renewed := redisson.Renew(backend.RenewRequest{})
	switch none := make([]backend.RenewRequest, 1); k {
	case backend.Fenced:
		acquired = redisson.AcquireFenced(backend.AcquireRequest{})
	case backend.Read:
		acquired, released = redisson.AcquireRead(backend.AcquireRequest{}),
			redisson.Dialect{}.ReleaseRead(backend.ReleaseRequest{})
		renewed = redisson.RenewReads(none)
	case backend.Write:
		acquired, released = redisson.AcquireWrite(backend.AcquireRequest{}),
			redisson.Dialect{}.ReleaseWrite(backend.ReleaseRequest{})
		renewed = redisson.RenewWrites(none)
	case backend.Fair:
		acquired, released = redisson.Dialect{}.AcquireFair(backend.AcquireRequest{}),
			redisson.Dialect{}.ReleaseFair(backend.ReleaseRequest{})
		renewed = redisson.Dialect{}.RenewFair(none)
	case backend.Permits:
		acquired, released = redisson.Dialect{}.AcquirePermits(backend.AcquireRequest{}),
			redisson.Dialect{}.ReleasePermits(backend.ReleaseRequest{})
		renewed = redisson.Dialect{}.RenewPermits(none)
	}
	return map[step][]func(faults.Request) bool{
		acquire: {runs(acquired.Script)},
		partial: {runs(released.Script)},
		release: {runs(released.Script)},
		renew:   {runs(renewed.Script)},
		subscribe: {func(r faults.Request) bool {
			return strings.EqualFold(r.Words[0], "subscribe")
		}},
	}
}

// runs says whether a request runs a script.
func runs(s redisson.Script) func(faults.Request) bool {
	return func(r faults.Request) bool {
		return len(r.Words) > 1 && (r.Words[1] == s.SHA1 || r.Words[1] == s.Text)
	}
}

func connectRedis(addrs ...string) (backend.Backend, func(), error) {
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs})
	return redisbackend.New(rdb), func() { rdb.Close() }, nil
}

func connectValkey(addrs ...string) (backend.Backend, func(), error) {
	return openValkey(valkey.ClientOption{InitAddress: addrs, ForceSingleClient: len(addrs) == 1})
}

func openValkey(opts valkey.ClientOption) (backend.Backend, func(), error) {
	vk, closeAll, err := wiretest.NewValkey(opts)
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return valkeybackend.New(vk), closeAll, nil
}

func connectRedisSentinel(master string, sentinels []string) (backend.Backend, func(), error) {
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: master, SentinelAddrs: sentinels,
	})
	return redisbackend.New(rdb), func() { rdb.Close() }, nil
}

func connectValkeySentinel(master string, sentinels []string) (backend.Backend, func(), error) {
	return openValkey(valkey.ClientOption{
		InitAddress: sentinels, Sentinel: valkey.SentinelOption{MasterSet: master},
	})
}

var etcdStore = &store{
	name:     "etcd",
	protocol: faults.HTTP2,
	lease:    2 * time.Second, // etcd allows no shorter one
	start:    func(t testing.TB) *testservers.Server { return testservers.Etcd(t) },
	connect:  connectEtcd,
	requests: func(k backend.Kind) map[step][]func(faults.Request) bool {
		parts := []func(faults.Request) bool{
			calls("Lease/LeaseKeepAlive"), writes((*pb.RequestOp).GetRequestPut),
		}
		if k == backend.Write {
			parts = parts[1:] // a partial release of a Write doesn't change the lease
		}
		return map[step][]func(faults.Request) bool{
			acquire:   {writes((*pb.RequestOp).GetRequestPut)},
			partial:   parts,
			release:   {writes((*pb.RequestOp).GetRequestDeleteRange), calls("Lease/LeaseRevoke")},
			renew:     {calls("Lease/LeaseKeepAlive"), calls("KV/Txn")},
			subscribe: {calls("Watch/Watch")},
		}
	},
	looks: func(backend.Kind) func(faults.Request) bool { return calls("Lease/LeaseTimeToLive") },
	empty: func(t *testing.T, addr string) bool {
		keys, leases := inEtcd(t, addr)
		return keys == 0 && leases == 0
	},
	unlocked: func(t *testing.T, addr string) bool {
		keys, _ := inEtcd(t, addr)
		return keys == 0
	},
	waiting: func(t *testing.T, addr, name string) (n int) {
		withEtcd(t, addr, func(ctx context.Context, cli *clientv3.Client) {
			there, err := cli.Get(ctx, etcdbackend.DefaultPrefix+name, clientv3.WithPrefix(),
				clientv3.WithCountOnly())
			must(t, err)
			n = int(there.Count) - 1 // without the holder's
		})
		return n
	},
	deleteKey: func(t *testing.T, addr, name string) {
		withEtcd(t, addr, func(ctx context.Context, cli *clientv3.Client) {
			// with the holds of readers
			_, err := cli.Delete(ctx, etcdbackend.DefaultPrefix+name, clientv3.WithPrefix())
			must(t, err)
		})
	},
}

func connectEtcd(addrs ...string) (backend.Backend, func(), error) {
	cli, err := clientv3.New(clientv3.Config{Endpoints: addrs, Logger: zap.NewNop()})
	if err != nil {
		return nil, nil, err
	}
	return etcdbackend.New(cli), func() { cli.Close() }, nil
}

// inEtcd returns the numbers of keys and leases.
func inEtcd(t *testing.T, addr string) (keys, leases int) {
	t.Helper()
	withEtcd(t, addr, func(ctx context.Context, cli *clientv3.Client) {
		held, err := cli.Get(ctx, "", clientv3.WithPrefix(), clientv3.WithCountOnly())
		must(t, err)
		granted, err := cli.Leases(ctx)
		must(t, err)
		keys, leases = int(held.Count), len(granted.Leases)
	})
	return keys, leases
}

func withEtcd(t *testing.T, addr string, do func(context.Context, *clientv3.Client)) {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()})
	must(t, err)
	defer cli.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testservers.Patience)
	defer cancel()
	do(ctx, cli)
}

var postgresStore = &store{
	name:     "postgres",
	protocol: faults.Bytes,
	lease:    time.Second,
	start: func(t testing.TB) *testservers.Server {
		s := testservers.Postgres(t)
		s.SQL(postgresbackend.Schema(postgresbackend.DefaultSchema))
		return s
	},
	connect: func(addrs ...string) (backend.Backend, func(), error) {
		b, err := postgresbackend.Connect(testservers.PostgresURL(addrs[0]) +
			"&default_query_exec_mode=exec")
		if err != nil {
			return nil, nil, err
		}
		return b, b.Close, nil
	},
	requests: postgresRequests,
	looks: func(k backend.Kind) func(faults.Request) bool {
		if k == backend.Fair { // a waiter in line keeps its place
			return asks("fair(3")
		}
		return postgresRequests(k)[acquire][0]
	},
	empty: func(t *testing.T, addr string) bool {
		return sql(t, addr,
			`SELECT EXISTS (SELECT FROM distsync.distsync_v1_lock
				WHERE owner IS NOT NULL AND expires > clock_timestamp())
			OR EXISTS (SELECT FROM distsync.distsync_v1_part
				WHERE role <> 5 AND expires > clock_timestamp())`) == "f"
	},
	waiting: func(t *testing.T, addr, name string) int {
		n, err := strconv.Atoi(sql(t, addr,
			`SELECT count(*) FROM distsync.distsync_v1_part WHERE role = 3 AND name = '`+name+`'`))
		must(t, err)
		return n
	},
	deleteKey: func(t *testing.T, addr, name string) {
		sql(t, addr, `DELETE FROM distsync.distsync_v1_lock WHERE name = '`+name+
			`'; DELETE FROM distsync.distsync_v1_part WHERE name = '`+name+`'`)
	},
	restart: func(s *testservers.Server) {
		s.Restart()
		s.SQL(`TRUNCATE distsync.distsync_v1_lock, distsync.distsync_v1_part,
			distsync.distsync_v1_latch`)
	},
}

// postgresRequests returns the requests of each step, by the functions that they call.
func postgresRequests(k backend.Kind) map[step][]func(faults.Request) bool {
	acquired, released, renewed := "acquire", "release", "renew"
	switch k {
	case backend.Read:
		acquired, released = "read", "leave"
	case backend.Write:
		acquired = "write"
	case backend.Permits:
		acquired, released = "permits", "leave"
	case backend.Fair:
		acquired, released = "fair(1", "fair(2"
	}
	return map[step][]func(faults.Request) bool{
		acquire: {asks(acquired)}, partial: {asks(released)}, release: {asks(released)},
		renew: {asks(renewed)}, subscribe: {listens},
	}
}

func sql(t *testing.T, addr, statements string) string {
	t.Helper()
	answer, err := testservers.SQL(addr, statements)
	must(t, err)
	return answer
}

// listens says whether a request makes a connection listen to notifications.
func listens(r faults.Request) bool { return bytes.Contains(r.Bytes, []byte("LISTEN ")) }

// asks says whether a request calls a function whose name, after the prefix, begins with this.
func asks(function string) func(faults.Request) bool {
	return func(r faults.Request) bool {
		return bytes.Contains(r.Bytes, []byte(".distsync_v1_"+function))
	}
}

func calls(method string) func(faults.Request) bool {
	return func(r faults.Request) bool { return r.Method == "/etcdserverpb."+method }
}

// writes says whether a request is a transaction whose first operation is of this kind.
func writes[Op any](op func(*pb.RequestOp) *Op) func(faults.Request) bool {
	return func(r faults.Request) bool {
		var txn pb.TxnRequest
		if r.Method != "/etcdserverpb.KV/Txn" ||
			proto.Unmarshal(bytes.Clone(r.Message), protoadapt.MessageV2Of(&txn)) != nil {
			return false
		}
		return len(txn.Success) > 0 && op(txn.Success[0]) != nil
	}
}

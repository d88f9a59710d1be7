package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/quorumbackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

// Stores of three independent servers. Such a store's address is a comma-separated list of its
// servers' addresses.
const (
	onThree   store = "3 Redis"
	onTwo     store = "3 Redis, one down"
	onHanging store = "3 Redis, one hangs"
)

var threes = []store{onThree, onTwo, onHanging}

// addresses returns the addresses of a store's servers.
func addresses(addr string) []string { return strings.Split(addr, ",") }

// answering returns the addresses of the servers that answer.
func (s store) answering(addr string) []string {
	all := addresses(addr)
	if s == onTwo || s == onHanging {
		return all[:len(all)-1]
	}
	return all
}

// isRESP reports whether a store's servers are Redis or compatible with it.
func (s store) isRESP() bool { return s != onEtcd && s != onPostgres && s != onMemory }

// startThree starts a store's servers and returns their addresses.
func (l *lab) startThree(s store) string {
	addrs := []string{testservers.Redis(l).Addr, testservers.Redis(l).Addr}
	if s == onTwo {
		return strings.Join(append(addrs, refusing(l)), ",")
	}
	third := testservers.Redis(l)
	if s == onHanging {
		third.Stop()
	}
	return strings.Join(append(addrs, third.Addr), ",")
}

// refusing returns an address that refuses connections. It binds a port, so that no other program
// can use it, but doesn't listen on it.
func refusing(l *lab) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		l.Cleanup(func() { unix.Close(fd) })
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	var at unix.Sockaddr
	if err == nil {
		at, err = unix.Getsockname(fd)
	}
	if err != nil {
		l.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
}

var quorumContenders = slices.Concat(contendersOn(onThree), contendersOn(onTwo),
	contendersOn(onHanging))

// contendersOn returns the contenders for a store of three servers.
func contendersOn(s store) []contender {
	all := []contender{
		{name: "dlock, one store", store: s, in: []string{"W16", "W17"}, role: floor,
			open: onFirst(withRedis()), scripted: dlockScripts},
		{name: "our steps, bare", store: s, in: []string{"W16"}, role: twin,
			open: openQuorumSteps(s), scripted: dlockScripts},
		{name: "redsync", store: s, in: []string{"W16", "W17"}, open: openRedsync,
			scripted: compareAndDelete},
		{name: "redsync, fail fast", store: s, in: []string{"W16", "W17"}, open: openRedsyncFast,
			scripted: compareAndDelete},
		{name: "dlock, quorum", store: s, in: []string{"W16", "W17"}, role: ours,
			open: withQuorum(), scripted: dlockScripts},
	}
	if s == onHanging { // redsync waits for all servers, so a lock and an unlock take about 20 s
		all = slices.DeleteFunc(all, func(c contender) bool { return c.name == "redsync" })
	}
	return all
}

// onFirst wraps open, so that the client uses only the first server.
func onFirst(open func(place) (system, error)) func(place) (system, error) {
	return func(p place) (system, error) {
		p.addr = addresses(p.addr)[0]
		return open(p)
	}
}

func withQuorum(opts ...dlock.Option) func(place) (system, error) {
	return func(p place) (system, error) {
		var clients []*redis.Client
		var stores []backend.Backend
		for _, addr := range addresses(p.addr) {
			rdb := redis.NewClient(&redis.Options{Addr: addr})
			clients, stores = append(clients, rdb), append(stores, redisbackend.New(rdb))
		}
		return newDlock(quorumbackend.New(stores...), p, func() {
			for _, rdb := range clients {
				rdb.Close()
			}
		}, opts), nil
	}
}

// quorumSteps sends the same requests as package quorumbackend for an uncontended lock, without
// using that package. It acquires the lock at all servers concurrently, and releases it in the same
// way. It uses only the servers that answer.
type quorumSteps struct{ servers []*redisScripts }

func openQuorumSteps(on store) func(place) (system, error) {
	return func(p place) (system, error) {
		s := new(quorumSteps)
		for _, addr := range on.answering(p.addr) {
			p.addr = addr
			server, err := newRedisScripts(p)
			if err != nil {
				return nil, err
			}
			s.servers = append(s.servers, server)
		}
		return s, nil
	}
}

func (s *quorumSteps) locker(name string, _ int) (locker, error) {
	l := make(quorumStepsLocker, len(s.servers))
	for i, server := range s.servers {
		l[i] = server.newLocker(name)
	}
	return l, nil
}

func (s *quorumSteps) close() {
	for _, server := range s.servers {
		server.close()
	}
}

type quorumStepsLocker []*redisScriptsLocker

func (l quorumStepsLocker) Lock(ctx context.Context) error {
	return l.each(func(one *redisScriptsLocker) error { return one.Lock(ctx) })
}

func (l quorumStepsLocker) Unlock() error { return l.each((*redisScriptsLocker).Unlock) }

// each calls a function concurrently for each server, and waits for the calls to return.
func (l quorumStepsLocker) each(do func(*redisScriptsLocker) error) error {
	errs := make(chan error, len(l))
	for _, one := range l {
		go func() { errs <- do(one) }()
	}
	var err error
	for range l {
		err = errors.Join(err, <-errs)
	}
	return err
}

const aboutThree = "Three servers, on one CPU together; “one store” has the first of them alone. " +
	"The one that is down refuses connections; the one that hangs takes them, and never answers. " +
	"redsync waits for all three by default, and with WithFailFast for two. Without that, a lock " +
	"and an unlock take it seconds where one is down, and some twenty where one hangs, which " +
	"isn't measured. All go through go-redis as it comes."

var workload16 = workload{
	id: "W16", title: "Three servers: lock and unlock, uncontended",
	about: aboutThree + " “our steps, bare” sends what ours does, to all servers at once.",
	metrics: []metric{
		{"p50", "p50 µs", 0}, {"ratio", "÷ one store", 2}, {"twin", "÷ our steps, bare", 2},
		{"p99", "p99 µs", 0}, {"rate", "pairs/s", 0}, {"client", "client CPU µs", 0},
		{"server", "servers' CPU µs", 0}, {"allocs", "allocs/pair", 0},
	},
	stores:  threes,
	ratioOf: "p50",
	common: trial{
		Job: jobLoop, Duration: 2 * time.Second, Lease: 30 * time.Second, Naming: ownNames,
		Endless: true,
	},
	points: []point{
		{label: "1 goroutine", quick: true, trial: trial{Goroutines: 1}},
		{label: "1 goroutine, 1 ms added to a round trip", on: []store{onThree},
			roundTrip: time.Millisecond, trial: trial{Goroutines: 1}},
		{label: "64 goroutines, own keys", trial: trial{Goroutines: 64}},
	},
	run: runPairs,
}

var workload17 = workload{
	id: "W17", title: "Three servers: one key, empty critical section",
	about: aboutThree,
	metrics: append([]metric{{"rate", "locks/s", 0}, {"ratio", "÷ one store", 2}},
		workload3.metrics[2:]...),
	stores:  threes,
	ratioOf: "rate",
	common: trial{
		Job: jobLoop, Duration: 3 * time.Second, Lease: 30 * time.Second, Naming: oneName,
	},
	points: []point{
		{label: "64 goroutines in one process", quick: true, processes: 1,
			trial: trial{Goroutines: 64}},
		{label: "8 goroutines in each of 4 processes", processes: 4, trial: trial{Goroutines: 8}},
	},
	run: runContended,
}

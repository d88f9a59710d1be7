package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A store identifies a kind of lock store, such as Redis or etcd.
type store string

const (
	onRedis    store = "Redis"
	onValkey   store = "Valkey"
	onEtcd     store = "etcd"
	onPostgres store = "PostgreSQL"
	onMemory   store = "memory" // in the process that uses it
)

// A lab runs the servers, and assigns CPUs to them and to their clients.
type lab struct {
	serverCPU, clientCPU int    // noCPU: any CPU
	profiles             string // the folder for profiles; "": no profiles

	servers map[store]string              // their addresses
	running map[store]*testservers.Server // the single servers behind the addresses
	// java is the class path of the Java programs, or "" if they can't run.
	java     string
	versions map[string]bool // versions of the servers started so far
	cleanups []func()
	names    int // the number of names given out
	launched int // the number of processes that write profiles
}

const noCPU = -1

// newLab returns a lab with separate CPUs for servers and clients. Otherwise a round trip would
// take 20 µs or 60 µs, depending on whether client and server happen to share a core.
func newLab(profiles string) *lab {
	l := &lab{
		serverCPU: noCPU, clientCPU: noCPU, profiles: profiles, versions: make(map[string]bool),
	}
	if cpus := allowedCPUs(); len(cpus) > 1 {
		// CPUs with adjacent numbers may be threads of the same core. The first and the last CPU
		// belong to different cores.
		l.serverCPU, l.clientCPU = cpus[0], cpus[len(cpus)-1]
	}
	return l
}

// start starts the servers of the wanted stores. It returns a description of each server that can't
// be started on this machine.
func (l *lab) start(wanted ...store) (missing []string) {
	l.servers, l.running = make(map[store]string), make(map[store]*testservers.Server)
	for _, s := range wanted {
		err := l.startServer(s)
		if err == nil && s != onMemory {
			var version string
			version, err = serverVersion(s, l.servers[s])
			l.versions[version] = true
		}
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", s, err))
		}
	}
	return missing
}

func (l *lab) startServer(s store) error {
	return l.whereServersRun(func() {
		switch s {
		case onRedis:
			l.running[s] = testservers.Redis(l)
		case onValkey:
			l.running[s] = testservers.Valkey(l)
		case onEtcd:
			// Without compaction, etcd's history would fill the disk.
			l.running[s] = testservers.Etcd(l, "--auto-compaction-mode=periodic",
				"--auto-compaction-retention=1m",
				"--quota-backend-bytes=8000000000")
		case onPostgres:
			l.running[s] = startPostgres(l)
		case onMemory:
			l.servers[s] = ""
			return
		default:
			l.servers[s] = l.startThree(s)
			return
		}
		l.servers[s] = l.running[s].Addr
	})
}

// restart kills the server of a store, and starts an empty one at the same address.
func (l *lab) restart(s store) error {
	return l.whereServersRun(func() { l.running[s].Restart() })
}

// whereServersRun calls f. If f starts servers, they are pinned to the servers' CPU.
func (l *lab) whereServersRun(f func()) error {
	return pinned(l.serverCPU, func() (err error) {
		defer func() {
			switch r := recover().(type) {
			case nil:
			case unusable:
				err = errors.New(string(r))
			default:
				panic(r)
			}
		}()
		f()
		return nil
	})
}

// has reports whether the programs that a contender needs are available.
func (l *lab) has(c contender) bool {
	_, ok := l.servers[c.store]
	return ok && (l.java != "" || !c.isJava())
}

// newName returns a lock name that hasn't been used before.
func (l *lab) newName() string {
	l.names++
	return fmt.Sprintf("bench:%d", l.names)
}

// delayed returns the addresses of proxies that add roundTrip to each round trip to a store's
// servers. If roundTrip is 0, it returns the servers' own addresses. The caller must call end when
// it no longer uses the addresses.
func (l *lab) delayed(s store, roundTrip time.Duration) (addr string, end func(), err error) {
	if roundTrip == 0 {
		return l.servers[s], func() {}, nil
	}
	var addrs []string
	var proxies []*delay
	end = func() {
		for _, d := range slices.Backward(proxies) { // each restores an older GOMAXPROCS
			d.close()
		}
	}
	for _, server := range addresses(l.servers[s]) {
		d, err := newDelay(server, roundTrip/2)
		if err != nil {
			end()
			return "", nil, err
		}
		addrs, proxies = append(addrs, d.addr()), append(proxies, d)
	}
	return strings.Join(addrs, ","), end, nil
}

// stop stops the servers.
func (l *lab) stop() {
	for _, f := range slices.Backward(l.cleanups) {
		f()
	}
	l.cleanups = nil
}

// The methods below implement [testservers.TB].

var _ testservers.TB = (*lab)(nil)

// unusable is the type of the value that Fatal and Skip panic with, since there is no test to end.
type unusable string

func (l *lab) Helper()                      {}
func (l *lab) Cleanup(f func())             { l.cleanups = append(l.cleanups, f) }
func (l *lab) Fatal(args ...any)            { panic(unusable(fmt.Sprint(args...))) }
func (l *lab) Fatalf(f string, args ...any) { panic(unusable(fmt.Sprintf(f, args...))) }
func (l *lab) Skip(args ...any)             { l.Fatal(args...) }
func (l *lab) Skipf(f string, args ...any)  { l.Fatalf(f, args...) }

func (l *lab) TempDir() string {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

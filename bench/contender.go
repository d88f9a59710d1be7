package main

import (
	"context"
	"slices"
	"time"
)

// A contender is one way to lock.
type contender struct {
	name  string
	store store
	in    []string // the workloads that it takes part in
	role  role
	open  func(place) (system, error)
	kind  kind // of lock, where that isn't the workload's affair
	most  int  // processes at a time; 0: any number

	// scripted are the commands that its scripts give within the server. They aren't counted:
	// clients don't send them.
	scripted []string
}

func (c contender) key() string { return string(c.store) + "/" + c.name }

// takesPart says whether a contender does a workload at a point.
func (c contender) takesPart(w workload, p point) bool {
	return slices.Contains(c.in, w.id) && (c.most == 0 || p.processes <= c.most) && (len(p.on) == 0 || slices.Contains(p.on, c.store))
}

// kindIn returns which kind of lock a contender uses in a trial.
func (c contender) kindIn(t trial) kind {
	if c.kind != plainLocks {
		return c.kind
	}
	return t.Kind
}

// mostInside is how many permits there are.
const mostInside = 16

// role says what a contender is there for, other than for itself.
type role uint8

const (
	peer  role = iota
	ours       // a lock of this repository
	bare       // a client with no lock around it
	floor      // one that others on the store are compared with
	twin       // one that sends what ours sends: ours is compared with it, too
	solo       // a floor that runs alone, in one goroutine, whatever the others do
)

// place is where a contender is to work.
type place struct {
	addr  string
	lease time.Duration
	kind  kind
	names int // of a lock that is several
}

// A kind is which of our kinds of lock is used.
type kind string

const (
	plainLocks  kind = ""
	fencedLocks kind = "fenced"
	readLocks   kind = "read"
	writeLocks  kind = "write"
	bothSides   kind = "read-write" // a locker for writing that is a sharer, too
	fairLocks   kind = "fair"
	permits     kind = "permits" // one of many: see mostInside
	oneLock     kind = "one"     // a plain one, whatever the others do
	allOfThem   kind = "all"     // several plain ones as one
	oneByOne    kind = "in turn" // several plain ones, one after the other
)

// A system is a contender at work: the state of one process.
type system interface {
	// locker returns a handle on a lock. Handles of different parties exclude each other; what
	// serves many locks at once, such as a session of etcd, is one for each party.
	locker(name string, party int) (locker, error)

	// close ends it.
	close()
}

// A locker is a party's handle on a lock. It is used by one goroutine at a time.
type locker interface {
	Lock(ctx context.Context) error
	Unlock() error
}

// A sharer is a locker that can also be had together with others.
type sharer interface {
	locker
	shared() locker
}

var contenders = slices.Concat(redisContenders, valkeyContenders, etcdContenders, postgresContenders, memoryContenders, quorumContenders)

// contenderBy returns a contender.
func contenderBy(key string) contender {
	i := slices.IndexFunc(contenders, func(c contender) bool { return c.key() == key })
	return contenders[i]
}

// open lets the process's contender begin.
func (c *child) open() (system, error) {
	who := contenderBy(c.Contender)
	return who.open(place{addr: c.Addr, lease: c.Lease, kind: who.kindIn(c.trial), names: c.Count})
}

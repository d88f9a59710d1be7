package main

import (
	"context"
	"slices"
	"time"
)

// A contender is one of the lock implementations being compared.
type contender struct {
	name  string
	store store
	in    []string // IDs of the workloads it takes part in
	role  role
	open  func(place) (system, error)
	kind  kind // kind of lock; unless it is plainLocks, it overrides the trial's
	most  int  // maximum number of processes at a time; 0 means no limit

	// scripted lists the commands that the contender's scripts call on the server. They are not
	// counted, because clients don't send them.
	scripted []string
}

func (c contender) key() string { return string(c.store) + "/" + c.name }

// takesPart reports whether the contender is measured at point p of workload w.
func (c contender) takesPart(w workload, p point) bool {
	return slices.Contains(c.in, w.id) && (c.most == 0 || p.processes <= c.most) &&
		(len(p.on) == 0 || slices.Contains(p.on, c.store))
}

// kindIn returns the kind of lock that the contender uses in trial t.
func (c contender) kindIn(t trial) kind {
	if c.kind != plainLocks {
		return c.kind
	}
	return t.Kind
}

// mostInside is the number of permits.
const mostInside = 16

// A role is the part that a contender plays in the comparison.
type role uint8

const (
	peer  role = iota
	ours       // a lock of this repository
	bare       // a client without a lock package
	floor      // the baseline for the ratios of the other contenders on the same store
	twin       // sends the same requests as our locks; a second baseline for their ratios
	solo       // like floor, but always one goroutine in one process
)

// place holds a contender's server and options.
type place struct {
	addr  string
	lease time.Duration
	kind  kind
	names int // number of names, for a lock on several names
}

// A kind names a kind of lock that package dlock offers, or a way to use several locks.
type kind string

const (
	plainLocks  kind = ""
	fencedLocks kind = "fenced"
	readLocks   kind = "read"
	writeLocks  kind = "write"
	bothSides   kind = "read-write" // a write locker that also implements sharer
	fairLocks   kind = "fair"
	permits     kind = "permits" // one permit of mostInside
	oneLock     kind = "one"     // a plain lock, regardless of what other contenders use
	allOfThem   kind = "all"     // several plain locks as one
	oneByOne    kind = "in turn" // several plain locks, one after the other
)

// A system creates a contender's lockers in one process. It contains what the lockers share, such
// as a client.
type system interface {
	// locker returns a handle for the named lock. Handles of different parties exclude each other.
	// Each party has its own state for all of its locks, such as an etcd session.
	locker(name string, party int) (locker, error)

	// close closes the system.
	close()
}

// A locker is a party's handle for a lock. It is used by one goroutine at a time.
type locker interface {
	Lock(ctx context.Context) error
	Unlock() error
}

// A sharer is a locker of a read-write lock. Its own methods lock for writing. The method shared
// returns a locker for reading.
type sharer interface {
	locker
	shared() locker
}

var contenders = slices.Concat(redisContenders, valkeyContenders, etcdContenders,
	postgresContenders, memoryContenders, quorumContenders)

// contenderBy returns the contender with the given key.
func contenderBy(key string) contender {
	i := slices.IndexFunc(contenders, func(c contender) bool { return c.key() == key })
	return contenders[i]
}

// open starts the contender of this process.
func (c *child) open() (system, error) {
	who := contenderBy(c.Contender)
	return who.open(place{addr: c.Addr, lease: c.Lease, kind: who.kindIn(c.trial), names: c.Count})
}

package faults_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/depth"
)

// A fault is a row of the table.
type fault struct {
	name string
	run  func(l *lab)
	on   []string // stores; all if it is empty
	soon []string // the stores that have it not only at night; all if it is empty

	// kinds are the kinds of the parties' locks, in turn. Each element is one run on one server.
	// Without any the row is run once, with plain locks. The second variant is run only with plain
	// locks: to the store it makes no difference.
	kinds [][]backend.Kind

	// lab starts what the locks are on, if it isn't one server.
	lab func(t *testing.T, s *store, options []dlock.Option) *lab
}

// The holder of the lock, and the party that wants it.
var (
	plain     []backend.Kind
	fenced    = []backend.Kind{backend.Fenced}
	readWrite = []backend.Kind{backend.Read, backend.Write, backend.Write}
	writeRead = []backend.Kind{backend.Write, backend.Read, backend.Read}
	fair      = []backend.Kind{backend.Fair}
	permits   = []backend.Kind{backend.Permits} // of which there is one, but for guests
	sharded   = []backend.Kind{backend.Fenced, backend.Read}
)

var (
	redisAndValkey = []string{"redis", "valkey"}
	postgres       = []string{"postgres"}
)

// table lists the faults. In each row two parties may never rely on the lock at once: see referee.
// The next party gets in, and in the end nothing is left in the store.
var table = []fault{
	{name: "the reply to an acquisition is lost", run: acquireReplyLost,
		kinds: [][]backend.Kind{plain, fenced, readWrite, writeRead, fair, permits}},
	{name: "the reply to a grant is lost", run: grantReplyLost, on: []string{"etcd"}},
	{name: "the reply to a re-entry is lost", run: reentryReplyLost,
		kinds: [][]backend.Kind{plain, fenced, writeRead, fair}},
	{name: "the reply to a partial release is lost", run: partialReplyLost,
		kinds: [][]backend.Kind{plain, writeRead, fair}},
	{name: "releases are lost", run: releasesDropped},
	{name: "a renewal gets no reply", run: renewalHeldBack, on: []string{"redis"}},
	{name: "the reply to a renewal comes late", run: renewalReplyLate},
	{name: "an acquisition is carried out late", run: lateAcquire,
		kinds: [][]backend.Kind{plain, writeRead, fair, permits}},
	{name: "the first waiter gives up in its attempt", run: firstWaiterGivesUp,
		kinds: [][]backend.Kind{plain, permits}},
	{name: "a release is carried out late", run: lateRelease},
	{name: "a renewal is carried out late", run: lateRenewal,
		kinds: [][]backend.Kind{plain, readWrite}},

	{name: "connections are cut while somebody waits", run: cutWhileWaiting,
		kinds: [][]backend.Kind{plain, fair, permits}},
	{name: "a subscription is cut while the lock is released", run: subscriptionCut,
		kinds: [][]backend.Kind{plain, readWrite, writeRead, fair, permits}},
	{name: "every connection is cut again and again", run: everyConnectionCut},
	{name: "a holder is in a black hole", run: blackHoleWhileHeld,
		kinds: [][]backend.Kind{plain, readWrite, fair, permits}},
	{name: "a waiter is in a black hole", run: blackHoleWhileWaiting,
		kinds: [][]backend.Kind{plain, fair, permits}},
	{name: "a waiter in a black hole gives up", run: blackHoleWhileGivingUp,
		kinds: [][]backend.Kind{plain, readWrite, fair, permits}},

	{name: "the server hangs for less than a lease", run: hungBriefly},
	{name: "the server hangs for more than a lease", run: hungForLong,
		kinds: [][]backend.Kind{plain, readWrite, fair, permits}},
	{name: "the server restarts without its data", run: restartedEmpty,
		kinds: [][]backend.Kind{plain, fenced, readWrite, fair, permits}},
	{name: "the server restarts with its data", run: restartedWithData,
		on: []string{"etcd", "postgres"}, lab: withData},
	{
		name: "a process of the server's is killed", run: backendKilled, on: postgres,
		kinds: [][]backend.Kind{plain, fenced, readWrite, fair, permits},
	},
	{name: "the server forgets its scripts", run: scriptsFlushed,
		kinds: [][]backend.Kind{plain, readWrite, writeRead, fair}, on: redisAndValkey},
	{name: "the key is deleted", run: keyDeleted},
	{name: "the key is deleted, and another locks", run: keyReplaced,
		kinds: [][]backend.Kind{plain, readWrite, fair}},
	{name: "a node of a cluster hangs", run: nodeHangs, on: redisAndValkey, lab: threeNodes},
	{name: "a member of three hangs and dies", run: memberGone, on: []string{"etcd"},
		lab: threeNodes},

	{name: "the master fails over to a replica that forgot", run: failedOver, on: redisAndValkey,
		lab: withSentinels},
	{name: "a standby is promoted", run: promoted, on: postgres, lab: withStandby},
	{name: "a synchronous standby is promoted", run: promoted, on: postgres,
		lab: withSynchronousStandby},
	{name: "a standby that forgot is promoted", run: promotedWithout, on: postgres,
		lab: withStandby},
	{name: "the server's clock is off, and jumps back", run: clockOff, on: redisAndValkey,
		lab: withClock},
	{name: "the server's clock jumps back between two numbers", run: numbersGrow,
		on: redisAndValkey, lab: withClock, kinds: [][]backend.Kind{fenced}},
	{name: "the server's clock jumps ahead", run: clockJumpsAhead,
		kinds: [][]backend.Kind{plain, readWrite, fair, permits}, on: redisAndValkey,
		lab: withClock},

	{name: "a holding process is paused past its lease", run: processPaused,
		kinds: [][]backend.Kind{plain, writeRead, fair}},
	{name: "a holding process is killed", run: holderKilled,
		kinds: [][]backend.Kind{plain, readWrite, writeRead, fair, permits}},
	{name: "a waiting process is killed", run: waiterKilled,
		kinds: [][]backend.Kind{plain, fair, permits}},
	{name: "a shared read is lost", run: sharedReadLost, kinds: [][]backend.Kind{readWrite}},
	{name: "one who shares a read leaves", run: oneReaderLeaves,
		kinds: [][]backend.Kind{readWrite}},
	{name: "a reading process is killed while others read", run: deadReader,
		kinds: [][]backend.Kind{{backend.Read, backend.Read, backend.Write}}},
	{name: "a process that waits to write is killed", run: waitingWriterKilled,
		kinds: [][]backend.Kind{writeRead}},
	{name: "the reply to the end of a write that goes on as a read is lost",
		run: downgradeReplyLost, kinds: [][]backend.Kind{writeRead}},
	{name: "readers and writers of eight processes, some cancelled, some killed", run: pairs,
		kinds: [][]backend.Kind{readWrite}},
	{name: "a process with many in line is killed", run: deadPlaces, kinds: [][]backend.Kind{fair}},
	{name: "many in line in eight processes, some cancelled, some killed", run: guests,
		kinds: [][]backend.Kind{fair}},
	{name: "many who want permits in eight processes, some cancelled, some killed", run: guests,
		kinds: [][]backend.Kind{permits}},
	{name: "replicas that divide shards are killed, paused and deployed", run: replicas,
		kinds: [][]backend.Kind{sharded}, soon: []string{"redis", "postgres"}},
	{name: "anything, at random, to replicas that divide shards", run: shardsInChaos,
		kinds: [][]backend.Kind{sharded}, soon: []string{"redis", "postgres"}},
	{name: "a thousand callers give up", run: cancellations},
	{name: "two clients have one id", run: sameID},
	{name: "anything, at random", run: chaos},

	// These take the longest, nearly a minute. Go begins parallel tests with the last, so they are
	// over before the others.
	{name: "the reply to the last release is lost", run: releaseReplyLost,
		kinds: [][]backend.Kind{plain, readWrite, writeRead, fair, permits}},
	{name: "the reply to an acquisition comes late", run: acquireReplyLate,
		kinds: [][]backend.Kind{plain, readWrite, permits}},
	{name: "the reply to a renewal is lost", run: renewalReplyLost,
		kinds: [][]backend.Kind{plain, readWrite, fair, permits}},
}

// A variant has options of dlock with which all rows must pass.
type variant struct {
	name    string
	options []dlock.Option
}

var variants = []variant{
	{"handing on", nil},
	{"asking the store", []dlock.Option{dlock.WithHandover(0)}},
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for row, f := range table {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, s := range stores {
				if !f.isOn(s) {
					continue
				}
				t.Run(s.name, func(t *testing.T) {
					depth.Needs(t, f.depth(row, s))
					t.Parallel()
					for _, v := range variants {
						for _, runs := range f.together(row, v) {
							t.Run(v.name+named(runs), func(t *testing.T) {
								switch { // package dlock does the same on each store
								case v.options != nil && s.name == "redis":
									depth.Needs(t, depth.Change)
								case v.options != nil:
									depth.Needs(t, depth.Night)
								}
								t.Parallel()
								f.test(t, s, v, runs)
							})
						}
					}
				})
			}
		})
	}
}

func (f *fault) isOn(s *store) bool { return len(f.on) == 0 || slices.Contains(f.on, s.name) }

// depth returns the depth from which this row is run on a store. The quickest runs have each row on
// one store, and each store in some rows.
func (f *fault) depth(row int, s *store) depth.Depth {
	if len(f.soon) > 0 && !slices.Contains(f.soon, s.name) {
		return depth.Night
	}
	soon := slices.DeleteFunc(slices.Clone(stores), func(s *store) bool {
		return !f.isOn(s) || len(f.soon) > 0 && !slices.Contains(f.soon, s.name)
	})
	if soon[row%len(soon)] == s {
		return depth.Quick
	}
	return depth.Change
}

func (f *fault) test(t *testing.T, s *store, v variant, runs [][]backend.Kind) {
	start := f.lab
	if start == nil {
		start = oneServer
	}
	l := start(t, s, v.options)
	begin := time.Now()
	for i, kinds := range runs {
		// some of what the last run had may be left
		l.kinds, l.parties, l.lock = kinds, 0, fmt.Sprint("n", i)
		l.warm()
		f.run(l)
		l.verdict()
		t.Logf("%v: %v", kinds, time.Since(begin).Round(time.Millisecond))
	}
	l.end()
}

// together returns the runs, in groups that share a server. The quickest runs of all mostly wait
// for leases, so each of them has a server of its own and waits beside the others. With more rows,
// and the race detector, there is more to do than to wait, and servers cost more than they save.
func (f *fault) together(row int, v variant) (groups [][][]backend.Kind) {
	runs := f.runs(v)
	switch {
	case len(runs) == 0:
		return nil
	case depth.Now() > depth.Quick:
		return [][][]backend.Kind{runs}
	case len(runs) > 2: // the first and one other, so that each kind is in some rows
		runs = [][]backend.Kind{runs[0], runs[1+row%(len(runs)-1)]}
	}
	for _, kinds := range runs {
		groups = append(groups, [][]backend.Kind{kinds})
	}
	return groups
}

// named returns a word for each of the kinds of a group that is one of several.
func named(runs [][]backend.Kind) (name string) {
	if len(runs) > 1 {
		return ""
	}
	for _, k := range runs[0] {
		name += " " + k.String()
	}
	return name
}

// runs returns the kinds of each time that it is run.
func (f *fault) runs(v variant) [][]backend.Kind {
	runs := f.kinds
	if len(runs) == 0 {
		runs = [][]backend.Kind{plain}
	}
	if v.options != nil {
		return slices.DeleteFunc(slices.Clone(runs), func(kinds []backend.Kind) bool {
			return len(kinds) > 0
		})
	}
	return runs
}

func oneServer(t *testing.T, s *store, options []dlock.Option) *lab {
	return newLab(t, s, options, s.start(t))
}

package faults_test

import (
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// A fault is a row of the table.
type fault struct {
	name string
	run  func(l *lab)
	on   []string // stores; all if it is empty

	// lab starts what the locks are on, if it isn't one server.
	lab func(t *testing.T, s *store, options []dlock.Option) *lab
}

var redisAndValkey = []string{"redis", "valkey"}

// table is what can go wrong. In each row nobody may ever believe to have the lock while another
// does (see referee), the next gets in, and in the end nothing is left in the store.
var table = []fault{
	{name: "the reply to an acquisition is lost", run: acquireReplyLost},
	{name: "the reply to a grant is lost", run: grantReplyLost, on: []string{"etcd"}},
	{name: "the reply to a re-entry is lost", run: reentryReplyLost},
	{name: "the reply to a partial release is lost", run: partialReplyLost},
	{name: "the reply to the last release is lost", run: releaseReplyLost},
	{name: "releases are lost", run: releasesDropped},
	{name: "the reply to a renewal is lost", run: renewalReplyLost},
	{name: "a renewal gets no reply", run: renewalHeldBack, on: []string{"redis"}},
	{name: "the reply to an acquisition comes late", run: acquireReplyLate},
	{name: "the reply to a renewal comes late", run: renewalReplyLate},
	{name: "an acquisition is carried out late", run: lateAcquire},
	{name: "the first waiter gives up in its attempt", run: firstWaiterGivesUp},
	{name: "a release is carried out late", run: lateRelease},
	{name: "a renewal is carried out late", run: lateRenewal},

	{name: "connections are cut while somebody waits", run: cutWhileWaiting},
	{name: "a subscription is cut while the lock is released", run: subscriptionCut},
	{name: "every connection is cut again and again", run: everyConnectionCut},
	{name: "a holder is in a black hole", run: blackHoleWhileHeld},
	{name: "a waiter is in a black hole", run: blackHoleWhileWaiting},
	{name: "a waiter in a black hole gives up", run: blackHoleWhileGivingUp},

	{name: "the server hangs for less than a lease", run: hungBriefly},
	{name: "the server hangs for more than a lease", run: hungForLong},
	{name: "the server restarts without its data", run: restartedEmpty},
	{name: "the server restarts with its data", run: restartedWithData, on: []string{"etcd"}, lab: withData},
	{name: "the server forgets its scripts", run: scriptsFlushed, on: redisAndValkey},
	{name: "the key is deleted", run: keyDeleted},
	{name: "the key is deleted, and another locks", run: keyReplaced},
	{name: "a node of a cluster hangs", run: nodeHangs, on: redisAndValkey, lab: threeNodes},
	{name: "a member of three hangs and dies", run: memberGone, on: []string{"etcd"}, lab: threeNodes},

	{name: "the master fails over to a replica that forgot", run: failedOver, on: redisAndValkey, lab: withSentinels},
	{name: "the server's clock is off, and jumps back", run: clockOff, on: redisAndValkey, lab: withClock},
	{name: "the server's clock jumps ahead", run: clockJumpsAhead, on: redisAndValkey, lab: withClock},

	{name: "a holding process is paused past its lease", run: processPaused},
	{name: "a holding process is killed", run: holderKilled},
	{name: "a waiting process is killed", run: waiterKilled},
	{name: "a thousand callers give up", run: cancellations},
	{name: "two clients have one id", run: sameID},
	{name: "anything, at random", run: chaos},
}

// A variant is options of dlock that everything must be true with.
type variant struct {
	name    string
	options []dlock.Option
}

var variants = []variant{
	{"handing on", nil},
	{"asking the store", []dlock.Option{dlock.WithHandover(0)}},
}

func TestFaults(t *testing.T) {
	for _, f := range table {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, s := range stores {
				if f.isOn(s) {
					t.Run(s.name, func(t *testing.T) {
						t.Parallel()
						for _, v := range variants {
							t.Run(v.name, func(t *testing.T) {
								t.Parallel()
								f.test(t, s, v)
							})
						}
					})
				}
			}
		})
	}
}

func (f *fault) isOn(s *store) bool {
	for _, name := range f.on {
		if name == s.name {
			return true
		}
	}
	return len(f.on) == 0
}

func (f *fault) test(t *testing.T, s *store, v variant) {
	start := f.lab
	if start == nil {
		start = oneServer
	}
	l := start(t, s, v.options)
	begin := time.Now()
	f.run(l)
	l.verdict()
	l.isEmpty()
	t.Logf("%v", time.Since(begin).Round(time.Millisecond))
}

func oneServer(t *testing.T, s *store, options []dlock.Option) *lab {
	return newLab(t, s, options, s.start(t))
}

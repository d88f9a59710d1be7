package redisson_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A kind is a kind of lock, as either side calls it.
type kind struct {
	name    string
	java    string // begins the methods of the Java program
	ours    backend.Kind
	locker  func(*dlock.Client, string) *dlock.Locker
	channel func(name string) string
	message string                                      // that the last unlock publishes
	held    func(owner, count string) map[string]string // the hash that is the lock, if one owner holds it
}

// kinds are those whose waiters don't stand in line.
var kinds = []kind{
	{"lock", "", backend.Exclusive, (*dlock.Client).Locker, channel, "0", plainHold},
	{"fenced", "fenced.", backend.Fenced, (*dlock.Client).FencedLocker, channel, "0", plainHold},
	{"write", "write.", backend.Write, writer, rwChannel, "1", writeHold},
	{"read", "read.", backend.Read, reader, rwChannel, "0", readHold},
}

// exclusive are those of them that one holds at a time.
var exclusive = kinds[:3]

// fair is a lock for which who waits stands in line.
var fair = kind{"fair", "fair.", backend.Fair, (*dlock.Client).FairLocker, channel, "0", plainHold}

// all are the kinds of lock.
var all = append(slices.Clone(kinds), fair)

// rival is a kind that is kept out by this one.
func (k kind) rival() kind {
	if k.ours == backend.Read {
		return kinds[2]
	}
	return k
}

// shares says whether two kinds are ways to one lock.
func (k kind) shares(other kind) bool { return k.channel("") == other.channel("") }

func reader(c *dlock.Client, name string) *dlock.Locker { return c.RWLocker(name).Reader() }
func writer(c *dlock.Client, name string) *dlock.Locker { return c.RWLocker(name).Writer() }

func plainHold(owner, count string) map[string]string { return map[string]string{owner: count} }

func writeHold(owner, count string) map[string]string {
	return map[string]string{"mode": "write", owner + ":write": count}
}

func readHold(owner, count string) map[string]string {
	return map[string]string{"mode": "read", owner: count}
}

// thread returns a new thread of the Java program, which calls methods of the lab's kind of lock.
func (l *lab) thread(t *testing.T) *thread {
	t.Helper()
	th := l.java.thread(t)
	th.kind = l.kind.java
	return th
}

// braced is a name as it begins the names of other keys in its slot, and ends those of channels.
func braced(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

func channel(name string) string   { return "redisson_lock__channel:" + braced(name) }
func rwChannel(name string) string { return "redisson_rwlock:" + braced(name) }

// ownChannel is where Redisson tells an owner who waits in line that a fair lock is free.
func ownChannel(name, owner string) string { return channel(name) + ":" + owner }

// grantsPrefix begins the channel on which one of our clients is told that it was given a fair lock; in a cluster with sharded
// channels the lock's name comes between.
const grantsPrefix = "distsync_fair_grants:"

// queueKey and timeoutKey are where it is kept who stands in line, and until when Redisson believes them to.
func queueKey(name string) string   { return "redisson_lock_queue:" + braced(name) }
func timeoutKey(name string) string { return "redisson_lock_timeout:" + braced(name) }

func scChannel(name string) string { return "redisson_sc:" + braced(name) }

// permitsKey is where it is kept which permits are out, and until when.
func permitsKey(name string) string { return braced(name) + ":timeout" }

func tokenKey(name string) string { return "redisson_lock_token:" + braced(name) }

// readKey is what lasts as long as one of the holds of an owner who reads.
func readKey(name, owner string, hold int) string {
	return fmt.Sprintf("%s:%s:rwlock_timeout:%d", braced(name), owner, hold)
}

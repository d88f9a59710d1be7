package redisson_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// A kind is a kind of lock, with its names on both sides.
type kind struct {
	name    string
	java    string // prefix of the methods of the Java program
	ours    backend.Kind
	locker  func(*dlock.Client, string) *dlock.Locker
	channel func(name string) string
	message string // published by the last unlock
	// the contents of the lock's hash if one owner holds it
	held func(owner, count string) map[string]string
}

// kinds are the kinds of lock without a line.
var kinds = []kind{
	{"lock", "", backend.Exclusive, (*dlock.Client).Locker, channel, "0", plainHold},
	{"fenced", "fenced.", backend.Fenced, (*dlock.Client).FencedLocker, channel, "0", plainHold},
	{"write", "write.", backend.Write, writer, rwChannel, "1", writeHold},
	{"read", "read.", backend.Read, reader, rwChannel, "0", readHold},
}

// exclusive are those of the kinds that have one holder at a time.
var exclusive = kinds[:3]

// fair is the lock whose waiters stand in line.
var fair = kind{"fair", "fair.", backend.Fair, (*dlock.Client).FairLocker, channel, "0", plainHold}

// all are all kinds of lock.
var all = append(slices.Clone(kinds), fair)

// rival returns a kind that this one excludes.
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

// braced returns a name in the form in which other keys of its slot begin with it, and channels end
// with it.
func braced(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

func channel(name string) string   { return "redisson_lock__channel:" + braced(name) }
func rwChannel(name string) string { return "redisson_rwlock:" + braced(name) }

// ownChannel returns the channel on which Redisson tells an owner in line that a fair lock is free.
func ownChannel(name, owner string) string { return channel(name) + ":" + owner }

// grantsPrefix begins the name of the channel on which a client in Go is notified of a grant. In a
// cluster with sharded channels the lock's name follows, before the client.
const grantsPrefix = "distsync_fair_grants:"

// queueKey and timeoutKey return the key of the line, and the key of the times at which Redisson
// considers its places expired.
func queueKey(name string) string   { return "redisson_lock_queue:" + braced(name) }
func timeoutKey(name string) string { return "redisson_lock_timeout:" + braced(name) }

func scChannel(name string) string { return "redisson_sc:" + braced(name) }

// permitsKey returns the key of the permits that are taken, with their ends.
func permitsKey(name string) string { return braced(name) + ":timeout" }

func tokenKey(name string) string { return "redisson_lock_token:" + braced(name) }

// readKey returns a key that lasts as long as one hold of a reader.
func readKey(name, owner string, hold int) string {
	return fmt.Sprintf("%s:%s:rwlock_timeout:%d", braced(name), owner, hold)
}

// Package redisson keeps locks as Redisson does, in Redis and in Valkey: the scripts and their arguments,
// the names, what the replies and the errors mean, and the sessions that take the steps. A backend adapts
// its client with a [Transport].
//
// A step's way is: the session builds the commands of the lock's kind, the transport sends them, and
// the kind reads the replies. What there is of a kind is its entry in one table.
//
// An exclusive lock is a hash under the lock's name, with one field: the owner, and its holds as the value.
// The key's expiry is the lease. Whoever frees the lock publishes a message on its channel.
package redisson

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A Script is a Lua script that the server runs as one atomic step.
type Script struct {
	Text string
	SHA1 string // of Text, in hex; the name by which EVALSHA runs it
}

var (
	//go:embed acquire.lua
	acquireText string
	//go:embed release.lua
	releaseText string
	//go:embed renew.lua
	renewText string
	//go:embed renewtogether.lua
	renewTogetherText string
	//go:embed forcerelease.lua
	delText string // which deletes a key of any kind

	acquireScript = newScript(acquireText)
	releaseScript = newScript(releaseText)
	renewScript   = newScript(renewText)

	renewTogetherScript = newScript(renewTogetherText)
)

// undeclared begins a script that uses keys which it is not told, such as those of the readers that it
// finds. For most servers it is a comment. Dragonfly refuses such a script without it.
const undeclared = "--!df flags=allow-undeclared-keys\n"

func newScript(text string) Script {
	sum := sha1.Sum([]byte(text))
	return Script{Text: text, SHA1: hex.EncodeToString(sum[:])}
}

// A Call is a script with what it is called with.
type Call struct {
	Script Script
	Keys   []string
	Args   []string
}

// call returns a call whose first words are its keys.
func call(script Script, keys int, words ...string) Call {
	return Call{script, words[:keys:keys], words[keys:]}
}

// Acquire is one attempt to lock. [ParseAcquire] reads its reply.
func Acquire(req backend.AcquireRequest) Call {
	return call(acquireScript, 1, req.Name, millis(req.Lease), req.Owner)
}

// Release gives one hold back, in the zero [Dialect].
func Release(req backend.ReleaseRequest) Call { return Dialect{}.Release(req) }

// Renew prolongs a hold. [ParseRenew] reads its reply.
func Renew(req backend.RenewRequest) Call {
	return call(renewScript, 1, req.Name, millis(req.Lease), req.Owner)
}

// renewTogether does for each name what [Renew] does, on a server that has all of them. All have one lease.
func renewTogether(reqs []backend.RenewRequest) Call {
	n := len(reqs)
	words := make([]string, 2*n+1)
	words[n] = millis(reqs[0].Lease)
	for i, req := range reqs {
		words[i], words[n+1+i] = req.Name, req.Owner
	}
	return call(renewTogetherScript, n, words...)
}

// ForceRelease frees a lock, in the zero [Dialect].
func ForceRelease(req backend.ForceReleaseRequest) Call { return Dialect{}.ForceRelease(req) }

// millis is a duration on the wire. The lease of a request is a whole number of milliseconds.
func millis(d time.Duration) string {
	return strconv.FormatInt(d.Milliseconds(), 10)
}

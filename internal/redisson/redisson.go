// Package redisson implements locks that are compatible with Redisson's, in Redis and Valkey. It
// contains the scripts and their arguments, the names of keys and channels, the meaning of replies
// and errors, and the sessions that run the steps. A backend adapts its client library with a
// [Transport].
//
// In a step, the session builds the commands for the lock's kind, the transport sends them, and the
// kind reads the replies. Each kind is an entry in one table.
//
// An exclusive lock is a hash under the lock's name. The hash has one field, the owner, whose value
// is the number of its holds. The key's expiry is the lease. A step that frees the lock publishes a
// message on the lock's channel.
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
	// SHA1 is the hash of Text, in hex. EVALSHA runs the script by this hash.
	SHA1 string
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
	delText string // deletes a key of any type

	acquireScript = newScript(acquireText)
	releaseScript = newScript(releaseText)
	renewScript   = newScript(renewText)

	renewTogetherScript = newScript(renewTogetherText)
)

// undeclared is the first line of a script that uses keys which aren't among its arguments, such as
// the timeouts of readers. Dragonfly refuses such a script without this line. Other servers treat
// the line as a comment.
const undeclared = "--!df flags=allow-undeclared-keys\n"

func newScript(text string) Script {
	sum := sha1.Sum([]byte(text))
	return Script{Text: text, SHA1: hex.EncodeToString(sum[:])}
}

// A Call is a script with its keys and arguments.
type Call struct {
	Script Script
	Keys   []string
	Args   []string
}

// call returns a [Call] of a script. The words are the call's keys, followed by its arguments. The
// parameter keys is the number of keys.
func call(script Script, keys int, words ...string) Call {
	return Call{script, words[:keys:keys], words[keys:]}
}

// Acquire makes one attempt to lock. [ParseAcquire] reads its reply.
func Acquire(req backend.AcquireRequest) Call {
	return call(acquireScript, 1, req.Name, millis(req.Lease), req.Owner)
}

// Release releases one hold, using the zero [Dialect].
func Release(req backend.ReleaseRequest) Call { return Dialect{}.Release(req) }

// Renew renews a hold. [ParseRenew] reads its reply.
func Renew(req backend.RenewRequest) Call {
	return call(renewScript, 1, req.Name, millis(req.Lease), req.Owner)
}

// renewTogether is like [Renew], but for many locks. All locks must be on the same server, and have
// the same lease.
func renewTogether(reqs []backend.RenewRequest) Call {
	n := len(reqs)
	words := make([]string, 2*n+1)
	words[n] = millis(reqs[0].Lease)
	for i, req := range reqs {
		words[i], words[n+1+i] = req.Name, req.Owner
	}
	return call(renewTogetherScript, n, words...)
}

// ForceRelease frees a lock, using the zero [Dialect].
func ForceRelease(req backend.ForceReleaseRequest) Call { return Dialect{}.ForceRelease(req) }

// millis formats a duration for a script. A lease is always a whole number of milliseconds.
func millis(d time.Duration) string {
	return strconv.FormatInt(d.Milliseconds(), 10)
}

package redisson

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A fair lock is stored like Redisson's RFairLock, but our scripts differ from Redisson's. Its keys
// are the hash of a plain lock, a list of the waiting owners, and a sorted set with the time after
// which each waiting owner is ignored. Another sorted set holds the time at which each of our
// owners loses its place.
//
// Redisson's scripts wake the first owner in line, which then tries again. Our scripts give the
// lock to the first owner in line for a short time, if the lock is free at the end of the script
// and that owner is ours. They notify the owner's client on a channel.

var (
	//go:embed fair.lua
	fairText string
	//go:embed fairacquire.lua
	fairAcquireText string
	//go:embed fairkeep.lua
	fairKeepText string
	//go:embed fairrelease.lua
	fairReleaseText string
	//go:embed fairreleasekeep.lua
	fairReleaseKeepText string
	//go:embed fairrenew.lua
	fairRenewText string
	//go:embed fairforce.lua
	fairForceText string
)

var (
	fairAcquireScript     = newScript(isLockText + keptText + fairText + fairAcquireText)
	fairKeepScript        = newScript(isLockText + fairText + fairKeepText)
	fairReleaseScript     = newScript(isLockText + fairText + fairReleaseText)
	fairReleaseKeepScript = newScript(isLockText + keptText + fairText + fairReleaseKeepText)
	fairRenewScript       = newScript(isLockText + fairText + fairRenewText)
	fairForceScript       = newScript(isLockText + fairText + fairForceText)

	shardedFairAcquireScript     = sharded(fairAcquireScript.Text)
	shardedFairKeepScript        = sharded(fairKeepScript.Text)
	shardedFairReleaseScript     = sharded(fairReleaseScript.Text)
	shardedFairReleaseKeepScript = sharded(fairReleaseKeepScript.Text)
	shardedFairRenewScript       = sharded(fairRenewScript.Text)
	shardedFairForceScript       = sharded(fairForceScript.Text)
)

// fairSuffix marks the owners of our own fair locks, as opposed to Redisson's. A waiting owner
// without it is Redisson's. A holder without it holds Redisson's fair lock, or a plain lock.
const fairSuffix = ":fair"

// inLine returns the name under which a fair lock stores an owner.
func inLine(owner string) string { return owner + fairSuffix }

// clientOf returns the part of an owner before the last colon, which identifies the owner's client.
func clientOf(owner string) string {
	if colon := strings.LastIndexByte(owner, ':'); colon >= 0 {
		return owner[:colon]
	}
	return owner
}

const grantsPrefix = "distsync_fair_grants:"

// grants returns the prefix of the names of a lock's grant channels. The rest of the name
// identifies a client, which learns from the channel that one of its owners was given the lock.
// With sharded channels, each lock has its own prefix. Otherwise all locks share one prefix.
func (d Dialect) grants(name string) string {
	if d.Sharded {
		return tagged(grantsPrefix, name, ":")
	}
	return grantsPrefix
}

// turnChannel returns the channel on which Redisson tells an owner in line to try again.
func turnChannel(name, owner string) string { return Channel(name) + ":" + owner }

// The keys of the sorted sets of fair locks begin with these prefixes.
const (
	timeoutsPrefix = "redisson_lock_timeout:"
	placesPrefix   = "distsync_fair_places:"
)

// fairKeys returns the keys of a fair lock, followed by the name of its channel. The channels for
// Redisson's owners have names with that prefix. See turnChannel.
func fairKeys(name string) []string {
	return []string{name, tagged("redisson_lock_queue:", name, ""),
		tagged(timeoutsPrefix, name, ""),
		tagged(placesPrefix, name, ""), Channel(name)}
}

// AcquireFair makes one attempt to acquire a fair lock. [ParseTurn] reads its reply.
func (d Dialect) AcquireFair(req backend.AcquireRequest) Call {
	return Call{d.script(fairAcquireScript, shardedFairAcquireScript), fairKeys(req.Name),
		[]string{d.grants(req.Name), millis(req.Lease), req.Owner, millis(ceil(req.Place)),
			flag(req.Reentry), flag(req.Waited > 0 && req.Place > 0)}}
}

// flag formats a bool for a script.
func flag(set bool) string {
	if set {
		return "1"
	}
	return "0"
}

// placesPortion is the maximum number of places in line that one script extends. The server does
// nothing else while the script runs.
const placesPortion = 250

// KeepPlaces returns the calls that extend the places of waiters in line. Each call covers some of
// the waiters. Owners that have lost their places are put back at the front of the line. To
// preserve the order of the waiters, the first call covers the last ones, and the calls must be
// sent in the returned order. The last call gives the lock to the first in line if the lock is
// free. [ParseTurn] reads each reply.
func (d Dialect) KeepPlaces(req backend.PlacesRequest) []Call {
	var calls []Call
	for owners := range slices.Chunk(req.Owners, placesPortion) { // there is at least one
		args := append([]string{d.grants(req.Name), millis(ceil(req.Place)), flag(len(calls) == 0)},
			owners...)
		calls = append(calls, Call{
			d.script(fairKeepScript, shardedFairKeepScript), fairKeys(req.Name), args,
		})
	}
	slices.Reverse(calls)
	return calls
}

// ReleaseFair releases one hold, or gives up a place in line. [ParseRelease] reads its reply. The
// outcome [backend.NotHeld] is reliable.
func (d Dialect) ReleaseFair(req backend.ReleaseRequest) Call {
	return Call{d.script(fairReleaseScript, shardedFairReleaseScript), fairKeys(req.Name),
		[]string{d.grants(req.Name), millis(req.Lease), req.Owner}}
}

// KeepFair releases one hold as ReleaseFair does, but the lock stays taken after the last release.
// [ParseKeep] reads its reply. The outcome [backend.NotHeld] is reliable.
func (d Dialect) KeepFair(req backend.ReleaseRequest) Call {
	return Call{d.script(fairReleaseKeepScript, shardedFairReleaseKeepScript), fairKeys(req.Name),
		[]string{d.grants(req.Name), millis(req.Lease), req.Owner, millis(req.Keep)}}
}

// RenewFair renews up to a hundred holds, and uses the lease of the first request for all of them.
// [ParseRenewals] reads its reply. If the reply says that a hold is gone, that is reliable. An
// error doesn't say which of the holds caused it.
func (d Dialect) RenewFair(reqs []backend.RenewRequest) Call {
	keys, args := make([]string, 0, 5*len(reqs)), []string{millis(reqs[0].Lease)}
	for _, req := range reqs {
		keys, args = append(keys, fairKeys(req.Name)...),
			append(args, d.grants(req.Name), req.Owner)
	}
	return Call{d.script(fairRenewScript, shardedFairRenewScript), keys, args}
}

// ForceReleaseFair frees a lock, regardless of its holder. [ParseForceRelease] reads its reply.
func (d Dialect) ForceReleaseFair(req backend.ForceReleaseRequest) Call {
	return Call{
		d.script(fairForceScript, shardedFairForceScript), fairKeys(req.Name),
		[]string{d.grants(req.Name)},
	}
}

// ceil rounds up to whole milliseconds, so that a short duration doesn't become zero.
func ceil(d time.Duration) time.Duration {
	if t := d.Truncate(time.Millisecond); t < d {
		return t + time.Millisecond
	}
	return d
}

// A Turn is the state of a fair lock at the end of a script.
type Turn struct {
	// Acquired reports whether the owner holds the lock, Count times. If so, the other fields are
	// zero.
	Acquired bool
	Count    int

	Holder string // empty if the lock is free

	// Remaining is how much longer the lock will be held. It is negative if the lock is free or
	// never expires.
	Remaining time.Duration

	// At is the time on the server's clock, rounded down to milliseconds.
	At time.Time

	// Redisson reports whether one of Redisson's owners holds the lock or waits for it.
	Redisson bool
}

// ParseTurn reads the reply to [Dialect.AcquireFair] and [Dialect.KeepPlaces].
func ParseTurn(reply any) (Turn, error) {
	words, _ := reply.([]any)
	switch len(words) {
	case 1:
		if count, ok := words[0].(int64); ok && count > 0 {
			return Turn{Acquired: true, Count: int(count)}, nil
		}
	case 4:
		holder, named := words[0].(string)
		left, ok := words[1].(int64)
		text, _ := words[2].(string)
		now, err := strconv.ParseInt(text, 10, 64)
		other, odd := parseBool("turn", words[3])
		if (named || words[0] == nil) && ok && left >= -2 && err == nil && odd == nil {
			return Turn{Holder: holder, Remaining: duration(max(left, -1)), At: time.UnixMilli(now),
				Redisson: other}, nil
		}
	}
	return Turn{}, unexpected("fair acquire", reply)
}

// ParseQueued reads the reply to [Dialect.AcquireFair] as the result of an acquisition.
func ParseQueued(reply any) (backend.AcquireResult, error) {
	turn, err := ParseTurn(reply)
	return backend.AcquireResult{Acquired: turn.Acquired, Count: turn.Count,
		Remaining: turn.Remaining}, err
}

// A Grant records when a fair lock was given to an owner.
type Grant struct {
	Name, Owner string // as in the store
	At          time.Time
	Lease       time.Duration
}

// ParseGranted parses a message on a client's grant channel. Any program can publish on that
// channel, so ParseGranted returns false if the message has another format.
func ParseGranted(message string) (Grant, bool) {
	words := strings.SplitN(message, " ", 4)
	if len(words) < 4 {
		return Grant{}, false
	}
	at, err1 := strconv.ParseInt(words[0], 10, 64)
	lease, err2 := strconv.ParseInt(words[1], 10, 64)
	n, err3 := strconv.Atoi(words[2])
	if err1 != nil || err2 != nil || err3 != nil || n < 0 || n > len(words[3]) || lease < 0 {
		return Grant{}, false
	}
	return Grant{Name: words[3][:n], Owner: words[3][n:], At: time.UnixMilli(at),
		Lease: duration(lease)}, true
}

// An observation is a reading of the server's clock, together with the time on our clock when the
// request for the reading was sent.
type observation struct {
	sent time.Time // on our clock, monotonic
	// at is the time on the server's clock. It is zero if there is no observation.
	at time.Time
}

// drift is 100 because we assume that a server's clock runs at most one part in a hundred faster or
// slower than ours.
const drift = 100

// since converts a time in a message from the server's clock to ours. The time can be before or
// after the observation. The parameter heard is when the client got the message. Unless the
// server's clock was set forward, the result is never later than the actual moment. The bool is
// false if there is no observation, or if the server's clock must have been set forward: otherwise
// it couldn't have reached the time in the message before the client got the message.
//
// If the server's clock was set back after the observation, the result is too early. If it was set
// forward by less than the delays of the observation and the message together, this isn't noticed.
// The result can then be too late, but by no more than the delay of the message.
func (o observation) since(at, heard time.Time) (time.Time, bool) {
	passed, most := at.Sub(o.at), heard.Sub(o.sent)
	if o.at.IsZero() || passed > most+most/drift+time.Millisecond {
		return time.Time{}, false
	}
	return o.sent.Add(passed - passed.Abs()/drift - time.Millisecond), true
}

package redisson

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A fair lock keeps the data of Redisson's RFairLock, by scripts of our own: the hash of a plain lock, a list of those who wait
// for it, and a sorted set that says until when each of them counts. Beside them is one of ours, until when
// each of ours has his place.
//
// Unlike Redisson's, which wake the first in line so that he asks again, each of ours gives the lock to the first as it ends, if
// it is free then and he is ours: he has it for a short time, and hears of it on a channel of his client's.

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

// fairSuffix tells ours from Redisson's in line, and owners of fair locks from those of plain ones.
const fairSuffix = ":fair"

// inLine is what an owner is called in a fair lock.
func inLine(owner string) string { return owner + fairSuffix }

// clientOf returns the client of an owner: what is before his number.
func clientOf(owner string) string {
	if colon := strings.LastIndexByte(owner, ':'); colon >= 0 {
		return owner[:colon]
	}
	return owner
}

const grantsPrefix = "distsync_fair_grants:"

// grants is what is put before a client for the name of the channel on which it is told who of its owners was given a
// lock: one for all locks or, where a channel belongs to a slot, one for each.
func (d Dialect) grants(name string) string {
	if d.Sharded {
		return tagged(grantsPrefix, name, ":")
	}
	return grantsPrefix
}

// turnChannel is where Redisson tells an owner that it is his turn.
func turnChannel(name, owner string) string { return Channel(name) + ":" + owner }

// What the keys of the sorted sets of fair locks begin with.
const (
	timeoutsPrefix = "redisson_lock_timeout:"
	placesPrefix   = "distsync_fair_places:"
)

// fairKeys are the keys of a fair lock, and the channel that those for Redisson's owners begin with.
func fairKeys(name string) []string {
	return []string{name, tagged("redisson_lock_queue:", name, ""), tagged(timeoutsPrefix, name, ""),
		tagged(placesPrefix, name, ""), Channel(name)}
}

// AcquireFair is one attempt to lock. [ParseTurn] reads its reply.
func (d Dialect) AcquireFair(req backend.AcquireRequest) Call {
	return Call{d.script(fairAcquireScript, shardedFairAcquireScript), fairKeys(req.Name),
		[]string{d.grants(req.Name), millis(req.Lease), req.Owner, millis(ceil(req.Place)),
			flag(req.Reentry), flag(req.Waited > 0 && req.Place > 0)}}
}

// flag is a bool on the wire.
func flag(set bool) string {
	if set {
		return "1"
	}
	return "0"
}

// placesPortion is how many places one script keeps: the server serves nobody else meanwhile.
const placesPortion = 250

// KeepPlaces keeps the places of waiters, each call those of a portion. They are to be sent in this
// order, the last waiters first: owners that come back into the line come before all that are in
// it. The last call gives the lock away if it is free. [ParseTurn] reads each reply.
func (d Dialect) KeepPlaces(req backend.PlacesRequest) []Call {
	var calls []Call
	for owners := range slices.Chunk(req.Owners, placesPortion) { // there is at least one
		args := append([]string{d.grants(req.Name), millis(ceil(req.Place)), flag(len(calls) == 0)}, owners...)
		calls = append(calls, Call{d.script(fairKeepScript, shardedFairKeepScript), fairKeys(req.Name), args})
	}
	slices.Reverse(calls)
	return calls
}

// ReleaseFair gives one hold back, or a place. [ParseRelease] reads its reply, and no further step is needed if that is no.
func (d Dialect) ReleaseFair(req backend.ReleaseRequest) Call {
	return Call{d.script(fairReleaseScript, shardedFairReleaseScript), fairKeys(req.Name),
		[]string{d.grants(req.Name), millis(req.Lease), req.Owner}}
}

// KeepFair gives one hold back as ReleaseFair does, but keeps the last. [ParseKeep] reads its reply, and no further step is needed
// if that is no.
func (d Dialect) KeepFair(req backend.ReleaseRequest) Call {
	return Call{d.script(fairReleaseKeepScript, shardedFairReleaseKeepScript), fairKeys(req.Name),
		[]string{d.grants(req.Name), millis(req.Lease), req.Owner, millis(req.Keep)}}
}

// RenewFair prolongs up to a hundred holds, all for the lease of the first. [ParseRenewals] reads its reply, and no
// further step is needed if that is no. Of an error nobody knows whose it is, unless there is only one.
func (d Dialect) RenewFair(reqs []backend.RenewRequest) Call {
	keys, args := make([]string, 0, 5*len(reqs)), []string{millis(reqs[0].Lease)}
	for _, req := range reqs {
		keys, args = append(keys, fairKeys(req.Name)...), append(args, d.grants(req.Name), req.Owner)
	}
	return Call{d.script(fairRenewScript, shardedFairRenewScript), keys, args}
}

// ForceReleaseFair frees a lock, whoever holds it. [ParseForceRelease] reads its reply.
func (d Dialect) ForceReleaseFair(req backend.ForceReleaseRequest) Call {
	return Call{d.script(fairForceScript, shardedFairForceScript), fairKeys(req.Name), []string{d.grants(req.Name)}}
}

// ceil rounds up to milliseconds: a place that isn't zero stays so.
func ceil(d time.Duration) time.Duration {
	if t := d.Truncate(time.Millisecond); t < d {
		return t + time.Millisecond
	}
	return d
}

// A Turn is how a fair lock was held at the end of a script.
type Turn struct {
	Acquired  bool // the owner holds it, Count times; then nothing else is said
	Count     int
	Holder    string        // or empty
	Remaining time.Duration // negative if nobody holds it, or for ever
	At        time.Time     // by the server's clock, to a millisecond that may have begun
	Redisson  bool          // one of Redisson's, or of another kind, holds it, or waits
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
			return Turn{Holder: holder, Remaining: duration(max(left, -1)), At: time.UnixMilli(now), Redisson: other}, nil
		}
	}
	return Turn{}, unexpected("fair acquire", reply)
}

// ParseQueued reads the reply to [Dialect.AcquireFair] as [ParseAcquire] does that to [Acquire].
func ParseQueued(reply any) (backend.AcquireResult, error) {
	turn, err := ParseTurn(reply)
	return backend.AcquireResult{Acquired: turn.Acquired, Count: turn.Count, Remaining: turn.Remaining}, err
}

// A Grant says when a fair lock was given to an owner.
type Grant struct {
	Name, Owner string // as they are in the store
	At          time.Time
	Lease       time.Duration
}

// ParseGranted reads what a client is told of its owners. It is false for what isn't a message of ours: anybody may publish.
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
	return Grant{Name: words[3][:n], Owner: words[3][n:], At: time.UnixMilli(at), Lease: duration(lease)}, true
}

// An observation is a moment of which both clocks are known: the server's, and one of ours that isn't later.
type observation struct {
	sent time.Time // ours, monotonic
	at   time.Time // the server's; zero if there is none
}

// drift is by how much a server's clock may run faster or slower than ours: a hundredth.
const drift = 100

// since translates a moment of the server's, of which was heard at an instant of ours, to one that surely isn't later. It is false if the
// server's clock can't have gone on as ours has since it was observed. If that was put back it is earlier than need be, and if it was put forward by less than
// what was observed and what was heard took on their way, it may be later, by as much as the latter was late.
func (o observation) since(at, heard time.Time) (time.Time, bool) {
	passed, most := at.Sub(o.at), heard.Sub(o.sent)
	if o.at.IsZero() || passed > most+most/drift+time.Millisecond {
		return time.Time{}, false
	}
	return o.sent.Add(passed - passed.Abs()/drift - time.Millisecond), true
}

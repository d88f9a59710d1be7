package redisson

import (
	_ "embed"
	"errors"
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// Scripts of our own. Those that say Again do what Redisson's do, after these did nothing for a reason
// that may not hold; the others look whether a key is a lock at all. Redisson's leave the same behind.

//go:embed islock.lua
var isLockText string

// isFirstLockText is the same for scripts that look at no other key than their first. Their keys are
// constants, since there are servers that accept nothing else.
var isFirstLockText = strings.NewReplacer("(key)", "()", ", key", ", KEYS[1]").Replace(isLockText)

// A lock that is kept when its last owner has given it back is held by a name that no owner has. So nothing that its owner sends late, or
// twice, finds it, and to all others it is a lock as any.

//go:embed kept.lua
var keptText string

//go:embed keep.lua
var keepText string

// keptSuffix is what kept.lua puts behind the name of an owner, but for what tells the kinds apart.
const keptSuffix = "-kept"

const (
	// onMaster begins a script that must not be answered by a replica, which a server becomes while
	// connections to it stand: as other writes, it refuses a DEL that deletes nothing. A server whose
	// memory is full permits that, and then all that the script does besides.
	onMaster = `
if (redis.call('exists', KEYS[2]) == 0) then
    redis.call('del', KEYS[2]);
end;
`
	// hasMode says whether a hash has a mode, as read-write locks do: with a number it is an owner of this name.
	hasMode = `
local mode = redis.call('hget', KEYS[1], 'mode');
local hasMode = mode and not tonumber(mode);
`
	// refuseForeign leaves a script if the key has a mode, or no expiry and doesn't look like a lock. With an expiry
	// it may be somebody's data, too, but who waits for it gets the lock when it is gone.
	refuseForeign = hasMode + `
if (hasMode or redis.call('pttl', KEYS[1]) == -1 and not isLock(KEYS[1])) then
    return -1;
end;
`
	// isKept says whether a lock that is not foreign is kept, be it plain or fair.
	isKept = `
local owner = redis.call('hlen', KEYS[1]) == 1 and redis.call('hkeys', KEYS[1])[1] or '';
return (string.sub(owner, -5) == '-kept' or string.sub(owner, -10) == '-kept:fair') and 1 or 0;
`
	// spareForeign leaves a script if the key may be anything but a lock. These always have an expiry.
	spareForeign = hasMode + `
if (hasMode or redis.call('hlen', KEYS[1]) > 0 and (redis.call('pttl', KEYS[1]) < 0 or not isLock(KEYS[1]))) then
    return -1;
end;
`
)

var (
	keepWholeText    = isFirstLockText + keptText + onMaster + refuseForeign + keepText
	releaseAgainText = isFirstLockText + onMaster + refuseForeign + releaseText
	forceReleaseText = isFirstLockText + spareForeign + delText

	isForeignScript    = newScript(isFirstLockText + refuseForeign + `return 0;`)
	isKeptScript       = newScript(isFirstLockText + refuseForeign + isKept)
	keepScript         = newScript(keepWholeText)
	renewAgainScript   = newScript(isFirstLockText + onMaster + refuseForeign + renewText)
	releaseAgainScript = newScript(releaseAgainText)
	forceReleaseScript = newScript(forceReleaseText)
)

// errForeign is the error of a step that finds a hash that is no lock, or one of another kind.
var errForeign = &backend.Error{Kind: backend.Refused, Err: backend.ErrConflict}

// Keep gives one hold back as [Dialect.Release] does, but keeps the last. Its answer holds as that of ReleaseAgain. [ParseKeep] reads its reply.
func (d Dialect) Keep(req backend.ReleaseRequest) Call {
	return call(d.script(keepScript, shardedKeepScript), 2,
		req.Name, Channel(req.Name), millis(req.Lease), req.Owner, millis(req.Keep), keptMessage)
}

// ReleaseAgain is what is sent after a [Release] that did nothing, if [MayHold] says so. Its answer holds:
// no replica gives it, and lack of memory doesn't prevent it. [ParseReleaseAgain] reads its reply.
func (d Dialect) ReleaseAgain(req backend.ReleaseRequest) Call {
	c := d.Release(req)
	c.Script = d.script(releaseAgainScript, shardedReleaseAgainScript)
	return c
}

// MayHold says whether the owner may hold the lock all the same after a release that did nothing.
func MayHold(res backend.ReleaseResult, err error) bool {
	return errors.Is(err, errNoMemory) || err == nil && res.Outcome == backend.NotHeld
}

// RenewAgain is what is sent after a [Renew] whose answer was no. Its own comes from no replica.
// [ParseRenewAgain] reads its reply.
func RenewAgain(req backend.RenewRequest) Call {
	return call(renewAgainScript, 2, req.Name, Channel(req.Name), millis(req.Lease), req.Owner)
}

// IsForeign asks about a key that keeps others from a lock. [ParseIsForeign] reads its reply.
func IsForeign(name string) Call { return call(isForeignScript, 1, name) }

// IsKept asks the same, and whether the lock is kept. [ParseIsKept] reads its reply.
func IsKept(name string) Call { return call(isKeptScript, 1, name) }

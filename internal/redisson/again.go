package redisson

import (
	_ "embed"
	"errors"
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// These scripts are ours, not Redisson's, but they leave the same data behind. Each of them checks
// whether the key is a lock at all. A script with Again in its name repeats one of Redisson's
// scripts after that script has replied that it did nothing. That reply can be wrong, but the reply
// of the Again script is reliable.

//go:embed islock.lua
var isLockText string

// isFirstLockText is like isLockText, but for scripts that check only their first key. It refers to
// the key as KEYS[1], since some servers accept only a constant index.
var isFirstLockText = strings.NewReplacer("(key)", "()", ", key", ", KEYS[1]").Replace(isLockText)

// A kept lock stays taken after its owner's last release. It is held under a name that no owner
// uses. So if a request of the owner arrives late or twice, it finds no hold. All other clients see
// an ordinary held lock.

//go:embed kept.lua
var keptText string

//go:embed keep.lua
var keepText string

// keptSuffix is the suffix that kept.lua appends to an owner's name. It may be followed by a suffix
// for the kind, such as fairSuffix.
const keptSuffix = "-kept"

const (
	// onMaster is prepended to a script that a replica must not answer, since a server can become a
	// replica while its connections stay open. If the script's second key doesn't exist, onMaster
	// calls DEL for it. That deletes nothing, but a replica refuses every write, so the script
	// fails there. A server whose memory is full accepts a DEL, and then also the rest of the
	// script.
	onMaster = `
if (redis.call('exists', KEYS[2]) == 0) then
    redis.call('del', KEYS[2]);
end;
`
	// hasMode checks whether a hash has a mode, as a read-write lock does. If the field is a
	// number, it isn't a mode but the hold count of an owner with the name "mode".
	hasMode = `
local mode = redis.call('hget', KEYS[1], 'mode');
local hasMode = mode and not tonumber(mode);
`
	// refuseForeign ends a script if the key is a read-write lock, or if it has no expiry and
	// doesn't look like a lock. A key with an expiry might be something else, too, but that does no
	// lasting harm: a waiting client gets the lock once the key has expired.
	refuseForeign = hasMode + `
if (hasMode or redis.call('pttl', KEYS[1]) == -1 and not isLock(KEYS[1])) then
    return -1;
end;
`
	// isKept checks whether a plain or fair lock was released but stays taken. It runs after
	// refuseForeign.
	isKept = `
local owner = redis.call('hlen', KEYS[1]) == 1 and redis.call('hkeys', KEYS[1])[1] or '';
return (string.sub(owner, -5) == '-kept' or string.sub(owner, -10) == '-kept:fair') and 1 or 0;
`
	// spareForeign ends a script if the key exists but might not be a lock. A lock always has an
	// expiry.
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

// errForeign is the error of a step if the key holds something other than a lock of the step's
// kind.
var errForeign = &backend.Error{Kind: backend.Refused, Err: backend.ErrConflict}

// Keep releases one hold as [Dialect.Release] does, but the lock stays taken after the last
// release. Its answer is as reliable as ReleaseAgain's. [ParseKeep] reads its reply.
func (d Dialect) Keep(req backend.ReleaseRequest) Call {
	return call(d.script(keepScript, shardedKeepScript), 2,
		req.Name, Channel(req.Name), millis(req.Lease), req.Owner, millis(req.Keep), keptMessage)
}

// ReleaseAgain repeats a [Release] after which [MayHold] returned true. Its answer is reliable: a
// replica can't give it, and a server whose memory is full still carries out the release.
// [ParseReleaseAgain] reads its reply.
func (d Dialect) ReleaseAgain(req backend.ReleaseRequest) Call {
	c := d.Release(req)
	c.Script = d.script(releaseAgainScript, shardedReleaseAgainScript)
	return c
}

// MayHold reports whether the owner might still hold the lock after a release with this result. The
// answer may have come from a replica, or the server may have been out of memory.
func MayHold(res backend.ReleaseResult, err error) bool {
	return errors.Is(err, errNoMemory) || err == nil && res.Outcome == backend.NotHeld
}

// RenewAgain repeats a [Renew] that found no hold. A replica can't answer it. [ParseRenewAgain]
// reads its reply.
func RenewAgain(req backend.RenewRequest) Call {
	return call(renewAgainScript, 2, req.Name, Channel(req.Name), millis(req.Lease), req.Owner)
}

// IsForeign asks whether a lock's key holds something other than a plain or fair lock.
// [ParseIsForeign] reads its reply.
func IsForeign(name string) Call { return call(isForeignScript, 1, name) }

// IsKept is like [IsForeign], but also asks whether the lock was released but stays taken.
// [ParseIsKept] reads its reply.
func IsKept(name string) Call { return call(isKeptScript, 1, name) }

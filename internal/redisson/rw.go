package redisson

import (
	_ "embed"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// A read-write lock has the data of Redisson's RReadWriteLock, but uses our own scripts, since the
// steps of package backend differ from Redisson's in these respects: a reader has a count of one,
// even if it acquires the lock again; an expiry is never shortened while the owner still has a
// hold; waiting writers leave notes; and the release of the write lock wakes waiting readers even
// if its owner still holds the read lock.
//
// Unlike Redisson's scripts, ours can be trusted when they reply that they did nothing, so no
// second script is needed. Such a reply can't come from a replica, since a script that finds
// nothing to do first runs a command that a replica refuses. And it can't be due to full memory,
// since a server whose memory is full still runs all scripts except those that acquire. If a key
// isn't a read-write lock, the script returns the error for a key of another type.

var (
	//go:embed rw.lua
	rwText string
	//go:embed notes.lua
	notesText string

	//go:embed readacquire.lua
	readAcquireText string
	//go:embed readrelease.lua
	readReleaseText string
	//go:embed readrenew.lua
	readRenewText string

	//go:embed writeacquire.lua
	writeAcquireText string
	//go:embed writerelease.lua
	writeReleaseText string
	//go:embed writereleasekeep.lua
	writeReleaseKeepText string
	//go:embed writerenew.lua
	writeRenewText string

	//go:embed rwforce.lua
	rwForceText string
	//go:embed rwlook.lua
	rwLookText string
)

var (
	readAcquireScript  = newScript(undeclared + isLockText + rwText + notesText + readAcquireText)
	writeAcquireScript = newScript(undeclared + isLockText + keptText + rwText + notesText +
		writeAcquireText)
	readRenewScript  = newScript(undeclared + isLockText + rwText + readRenewText)
	writeRenewScript = newScript(undeclared + isLockText + rwText + writeRenewText)
	rwLookScript     = newScript(undeclared + isLockText + rwText + rwLookText)

	readReleaseScript      = newScript(undeclared + isLockText + rwText + readReleaseText)
	writeReleaseScript     = newScript(undeclared + isLockText + rwText + writeReleaseText)
	writeReleaseKeepScript = newScript(undeclared + isLockText + keptText + rwText +
		writeReleaseKeepText)
	rwForceScript = newScript(undeclared + isLockText + rwText + onMaster + rwForceText)

	shardedReadReleaseScript      = sharded(readReleaseScript.Text)
	shardedWriteReleaseScript     = sharded(writeReleaseScript.Text)
	shardedWriteReleaseKeepScript = sharded(writeReleaseKeepScript.Text)
	shardedRWForceScript          = sharded(rwForceScript.Text)
)

// These are the modes of a read-write lock.
const (
	reading = "read"
	writing = "write"
)

// RWChannel returns the name of the channel on which releases of both sides of a read-write lock
// are published. The messages are the same as on a plain lock's [Channel].
func RWChannel(name string) string { return tagged("redisson_rwlock:", name, "") }

// notes returns the key of the hash that records the waiting writers.
func notes(name string) string { return apart("distsync_rwlock_notes:", name) }

// timeout returns the key that expires when a reader's lease ends.
func timeout(name, reader string) string { return tagged("", name, ":"+reader+":rwlock_timeout:1") }

// reader returns the field under which the lock stores an owner's read hold. A lock also has fields
// for the mode and for writers. If the owner's name looks like the name of such a field, reader
// appends a colon.
func reader(owner string) string {
	core := strings.TrimRight(owner, ":")
	if core == "mode" || strings.HasSuffix(core, writerSuffix) {
		return owner + ":"
	}
	return owner
}

// writer returns the field under which the lock stores an owner's write hold.
func writer(owner string) string { return reader(owner) + writerSuffix }

const writerSuffix = ":write"

// AcquireRead makes one attempt to acquire the read lock. [ParseGrant] reads its reply.
func AcquireRead(req backend.AcquireRequest) Call {
	r := reader(req.Owner)
	return call(readAcquireScript, 3, req.Name, timeout(req.Name, r), notes(req.Name),
		millis(req.Lease), r, writer(req.Owner), micros(req.Waited))
}

// AcquireWrite makes one attempt to acquire the write lock. [ParseGrant] reads its reply.
func AcquireWrite(req backend.AcquireRequest) Call {
	return call(writeAcquireScript, 2, req.Name, notes(req.Name),
		millis(req.Lease), writer(req.Owner), micros(req.Waited), micros(req.Place))
}

// ReleaseRead releases a read hold. [ParseRelease] reads its reply. The outcome [backend.NotHeld]
// is reliable.
func (d Dialect) ReleaseRead(req backend.ReleaseRequest) Call {
	r := reader(req.Owner)
	return call(d.script(readReleaseScript, shardedReadReleaseScript), 3,
		req.Name, RWChannel(req.Name), timeout(req.Name, r), unlockMessage, r)
}

// ReleaseWrite releases one hold, or removes the note of a waiting writer. [ParseRelease] reads its
// reply. The outcome [backend.NotHeld] is reliable.
func (d Dialect) ReleaseWrite(req backend.ReleaseRequest) Call {
	return call(d.script(writeReleaseScript, shardedWriteReleaseScript), 3,
		req.Name, RWChannel(req.Name), notes(req.Name), readUnlockMessage, millis(req.Lease),
		writer(req.Owner))
}

// KeepWrite releases one hold as ReleaseWrite does, but the lock stays taken after the last
// release. If the owner also has a read hold, the lock stays taken at least until the lease of that
// hold ends. [ParseKeep] reads the reply. The outcome [backend.NotHeld] is reliable.
func (d Dialect) KeepWrite(req backend.ReleaseRequest) Call {
	return call(d.script(writeReleaseKeepScript, shardedWriteReleaseKeepScript), 3,
		req.Name, RWChannel(req.Name), notes(req.Name), readUnlockMessage, millis(req.Lease),
		writer(req.Owner), millis(req.Keep))
}

// RenewReads renews up to a hundred read holds, and uses the lease of the first request for all of
// them. [ParseRenewals] reads its reply. If the reply says that a hold is gone, that is reliable.
// An error doesn't say which of the holds caused it.
func RenewReads(reqs []backend.RenewRequest) Call {
	keys, args := make([]string, 0, 2*len(reqs)), []string{millis(reqs[0].Lease)}
	for _, req := range reqs {
		r := reader(req.Owner)
		keys, args = append(keys, req.Name, timeout(req.Name, r)), append(args, r)
	}
	return Call{readRenewScript, keys, args}
}

// RenewWrites is like RenewReads, but for writes.
func RenewWrites(reqs []backend.RenewRequest) Call {
	keys, args := make([]string, 0, len(reqs)), []string{millis(reqs[0].Lease)}
	for _, req := range reqs {
		keys, args = append(keys, req.Name), append(args, writer(req.Owner))
	}
	return Call{writeRenewScript, keys, args}
}

// ForceReleaseRead ends all read holds. It has no effect while a writer holds the lock.
// [ParseForceRelease] reads its reply.
func (d Dialect) ForceReleaseRead(req backend.ForceReleaseRequest) Call {
	return d.forceRW(req.Name, unlockMessage, reading)
}

// ForceReleaseWrite ends the writer's hold, and the read hold of the same owner.
// [ParseForceRelease] reads its reply.
func (d Dialect) ForceReleaseWrite(req backend.ForceReleaseRequest) Call {
	return d.forceRW(req.Name, readUnlockMessage, writing)
}

func (d Dialect) forceRW(name, message, mode string) Call {
	return call(d.script(rwForceScript, shardedRWForceScript), 2, name, RWChannel(name), message,
		mode)
}

// LookRead asks about the readers. [ParseLookRW] reads its reply.
func LookRead(req backend.LookRequest) Call {
	r := reader(req.Owner)
	return call(rwLookScript, 2, req.Name, timeout(req.Name, r), reading, r)
}

// LookWrite asks about the writer. [ParseLookRW] reads its reply.
func LookWrite(req backend.LookRequest) Call {
	return call(rwLookScript, 1, req.Name, writing, writer(req.Owner))
}

// ParseGrant reads the reply to [AcquireRead] and [AcquireWrite]. If the lock was acquired, the
// reply is the count of the owner's holds. Otherwise it is the time until the current hold, or a
// waiting writer's note, expires.
func ParseGrant(reply any) (backend.AcquireResult, error) {
	words, granted := reply.([]any)
	if !granted && reply != nil {
		return ParseAcquire(reply)
	}
	if len(words) == 1 {
		if count, ok := words[0].(int64); ok && count > 0 {
			return backend.AcquireResult{Acquired: true, Count: int(count)}, nil
		}
	}
	return backend.AcquireResult{}, unexpected("acquire", reply)
}

// ParseRenewals reads the reply to [RenewReads] or [RenewWrites], which says for each of n requests
// whether the lock is held.
func ParseRenewals(reply any, n int) ([]backend.RenewResult, error) {
	replies, ok := reply.([]any)
	if !ok || len(replies) != n {
		return nil, unexpected("renew", reply)
	}
	results := make([]backend.RenewResult, n)
	for i, reply := range replies {
		var err error
		if results[i], err = ParseRenew(reply); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// ParseLookRW reads the reply to [LookRead] and [LookWrite].
func ParseLookRW(reply any) (backend.LookResult, error) {
	words, ok := reply.([]any)
	if !ok || len(words) != 4 {
		return backend.LookResult{}, unexpected("look", reply)
	}
	kept, err := parseBool("look", words[3])
	if err != nil {
		return backend.LookResult{}, err
	}
	res, err := ParseLook(words[0], words[1], words[2])
	res.Kept = res.Held && kept
	return res, err
}

// micros formats a duration in microseconds for a script, where milliseconds would be too coarse.
// It rounds up, so that a short duration doesn't become zero.
func micros(d time.Duration) string {
	n := d.Microseconds()
	if d%time.Microsecond > 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}

package redisson

import (
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
)

// Permits are kept as Redisson's RPermitExpirableSemaphore keeps them, by scripts of our own: a key with how many are available,
// and a sorted set of the ids of those that are out, by when they end. Redisson draws an id for each permit, and lets in
// whoever finds enough available. Here ids are made of the owner, so that a step can be repeated, and who gets in is a matter of
// how many ids are out: that heals what others have miscounted. The time is the server's.
//
// The scripts need no second one after a no, for the same reasons as those of read-write locks.

var (
	//go:embed permits.lua
	permitsText string
	//go:embed permitsacquire.lua
	permitsAcquireText string
	//go:embed permitsrelease.lua
	permitsReleaseText string
	//go:embed permitsreleasekeep.lua
	permitsReleaseKeepText string
	//go:embed permitsrenew.lua
	permitsRenewText string
	//go:embed permitsforce.lua
	permitsForceText string
	//go:embed permitslook.lua
	permitsLookText string
)

var (
	permitsAcquireScript     = newScript(permitsText + permitsAcquireText)
	permitsReleaseScript     = newScript(permitsText + permitsReleaseText)
	permitsReleaseKeepScript = newScript(permitsText + permitsReleaseKeepText)
	permitsRenewScript       = newScript(permitsText + permitsRenewText)
	permitsForceScript       = newScript(permitsText + permitsForceText)
	permitsLookScript        = newScript(permitsText + permitsLookText)

	shardedPermitsAcquireScript     = sharded(permitsAcquireScript.Text)
	shardedPermitsReleaseScript     = sharded(permitsReleaseScript.Text)
	shardedPermitsReleaseKeepScript = sharded(permitsReleaseKeepScript.Text)
	shardedPermitsRenewScript       = sharded(permitsRenewScript.Text)
	shardedPermitsForceScript       = sharded(permitsForceScript.Text)
)

const (
	// maxPermits is how many permits somebody may acquire at once. It bounds for how long a server does nothing else.
	maxPermits = 10_000

	// maxLimit is how many permits there can be: Java has an int for them.
	maxLimit = math.MaxInt32
)

// PermitsChannel returns the name of the channel on which it is published how many permits are available now.
func PermitsChannel(name string) string { return tagged("redisson_sc:", name, "") }

// ids is the key of the permits that are out.
func ids(name string) string { return tagged("", name, idsSuffix) }

// PermitIDs returns the key of the permits that are out. Without one there is none.
func PermitIDs(name string) string { return ids(name) }

const idsSuffix = ":timeout"

const (
	holderLen = 12
	idLen     = 16
)

// holder is what an owner's ids begin with.
func holder(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return string(sum[:holderLen])
}

// holderOf is what is known of the owner of an id, in hex: where it ends as ours do, what it begins with. Redisson's are random. It says
// whether the owner has given the permit back, and it is kept.
func holderOf(id string) (owner string, kept bool) {
	ours, kept := isOurs(id)
	if ours {
		id = id[:holderLen]
	}
	return hex.EncodeToString([]byte(id)), kept
}

// isOurs says whether an id ends as ours do, and whether the permit is kept.
func isOurs(id string) (ours, kept bool) {
	if len(id) != idLen {
		return false, false
	}
	number := binary.BigEndian.Uint32([]byte(id[holderLen:]))
	kept = number <= math.MaxInt32 && number > math.MaxInt32-maxPermits
	return kept || number > math.MaxUint32-maxPermits, kept
}

func permitsKeys(name string) []string { return []string{name, ids(name), PermitsChannel(name)} }

// permits is a number of them on the wire. What is too large stays so.
func permits(n int) string { return strconv.Itoa(min(n, maxPermits+1)) }

// AcquirePermits is one attempt to get permits. The owner is a [holder]. [ParsePermits] reads its reply.
func (d Dialect) AcquirePermits(req backend.AcquireRequest) Call {
	return Call{d.script(permitsAcquireScript, shardedPermitsAcquireScript), permitsKeys(req.Name),
		[]string{millis(req.Lease), req.Owner, permits(req.Permits), strconv.Itoa(min(req.Limit, maxLimit)), strconv.Itoa(maxPermits)}}
}

// ReleasePermits gives permits back. [ParseRelease] reads its reply, and no further step is needed if that is no.
func (d Dialect) ReleasePermits(req backend.ReleaseRequest) Call {
	return Call{d.script(permitsReleaseScript, shardedPermitsReleaseScript), permitsKeys(req.Name), []string{req.Owner, permits(req.Permits)}}
}

// KeepPermits gives permits back that nobody gets yet. [ParseKeep] reads its reply, and no further step is needed if that is no.
func (d Dialect) KeepPermits(req backend.ReleaseRequest) Call {
	return Call{d.script(permitsReleaseKeepScript, shardedPermitsReleaseKeepScript), permitsKeys(req.Name),
		[]string{req.Owner, permits(req.Permits), millis(req.Keep)}}
}

// RenewPermits prolongs up to a hundred holds, all for the lease of the first. [ParseRenewals] reads its reply, and
// no further step is needed if that is no. Of an error nobody knows whose it is, unless there is only one.
func (d Dialect) RenewPermits(reqs []backend.RenewRequest) Call {
	keys, args := make([]string, 0, 3*len(reqs)), []string{millis(reqs[0].Lease)}
	for _, req := range reqs {
		keys, args = append(keys, permitsKeys(req.Name)...), append(args, req.Owner, permits(req.Permits))
	}
	return Call{d.script(permitsRenewScript, shardedPermitsRenewScript), keys, args}
}

// ForceReleasePermits gives all permits back. [ParseForceRelease] reads its reply.
func (d Dialect) ForceReleasePermits(req backend.ForceReleaseRequest) Call {
	return Call{d.script(permitsForceScript, shardedPermitsForceScript), permitsKeys(req.Name), nil}
}

// LookPermits asks how many permits are out. [ParseLookPermits] reads its reply.
func LookPermits(req backend.LookRequest) Call {
	return call(permitsLookScript, 2, req.Name, ids(req.Name), req.Owner, permits(req.Permits))
}

// ParsePermits reads the reply to AcquirePermits: how many the owner has or, if none, when the first of those
// that are out is over, or why it can't be.
func ParsePermits(reply any) (backend.AcquireResult, error) {
	switch reply {
	case int64(-2):
		return backend.AcquireResult{}, &backend.Error{Kind: backend.Refused, Err: backend.ErrNoLimit}
	case int64(-3):
		return backend.AcquireResult{}, &backend.Error{Kind: backend.Refused, Err: backend.ErrTooMany}
	case int64(-4):
		return backend.AcquireResult{}, &backend.Error{Kind: backend.Refused, Err: errTooManyAtOnce}
	case nil:
		return backend.AcquireResult{}, unexpected("acquire", reply)
	default:
		return ParseGrant(reply)
	}
}

var errTooManyAtOnce = fmt.Errorf("%w: no more than %d can be acquired at once", backend.ErrTooMany, maxPermits)

// ParseLookPermits reads the reply to LookPermits.
func ParseLookPermits(req backend.LookRequest, reply any) (backend.LookResult, error) {
	words, _ := reply.([]any)
	if len(words) != 4 {
		return backend.LookResult{}, unexpected("look", reply)
	}
	out, ok := words[0].(int64)
	count, also := words[1].(int64)
	left, too := words[2].(int64)
	total, told := words[3].(int64)
	if !ok || !also || !too || !told && words[3] != nil || out < 0 || count < 0 || count > out || left < -1 {
		return backend.LookResult{}, unexpected("look", reply)
	}
	if req.Limit > 0 {
		total = int64(req.Limit)
	} else if !told {
		return backend.LookResult{}, &backend.Error{Kind: backend.Refused, Err: backend.ErrNoLimit}
	}
	return backend.LookResult{Held: out > 0, Count: int(count), Remaining: duration(left), Available: int(max(total-out, 0))}, nil
}

func lookedPermits(req backend.LookRequest, replies []Reply) (res backend.LookResult, certain bool, err error) {
	res, err = parse(replies[0], func(reply any) (backend.LookResult, error) { return ParseLookPermits(req, reply) })
	return res, true, err
}

// Available decodes a message on the channel of a semaphore: how many permits are available, as far as who has sent it knows. For
// others there may be more.
func Available(message string) (pubsub.Meaning, bool) {
	_, err := strconv.ParseInt(message, 10, 64)
	return pubsub.Freed, err == nil
}

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

// A semaphore is stored like Redisson's RPermitExpirableSemaphore, but uses our own scripts. One
// key stores the number of available permits. A sorted set stores the ids of the acquired permits,
// ordered by their expiry on the server's clock. Redisson generates a random id for each permit.
// Our ids are derived from the owner, so that a step can be repeated. Redisson relies on the number
// of available permits. Our scripts instead count the acquired ids, and an acquisition with a limit
// corrects the number of available permits to match them.
//
// If a script replies that it did nothing, the reply is reliable, for the reasons in rw.go. So no
// step needs a second script.

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
	// maxPermits is the largest number of permits that an owner can acquire at once. It bounds how
	// long a script keeps the server from other work.
	maxPermits = 10_000

	// maxLimit is the largest number of permits that a semaphore can have. Redisson stores the
	// number in a Java int.
	maxLimit = math.MaxInt32
)

// PermitsChannel returns the name of the channel on which scripts publish the number of available
// permits.
func PermitsChannel(name string) string { return tagged("redisson_sc:", name, "") }

// ids returns the key of the acquired permits.
func ids(name string) string { return tagged("", name, idsSuffix) }

// PermitIDs returns the key of the acquired permits. If there are none, the key doesn't exist.
func PermitIDs(name string) string { return ids(name) }

const idsSuffix = ":timeout"

const (
	holderLen = 12
	idLen     = 16
)

// holder returns the bytes with which all of an owner's ids begin.
func holder(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return string(sum[:holderLen])
}

// holderOf returns, in hex, the part of an id that identifies the owner. It also reports whether
// the permit was released but stays taken. Redisson's ids are entirely random, so holderOf returns
// such an id whole.
func holderOf(id string) (owner string, kept bool) {
	ours, kept := isOurs(id)
	if ours {
		id = id[:holderLen]
	}
	return hex.EncodeToString([]byte(id)), kept
}

// isOurs reports whether an id has the form of our ids and, if so, whether its permit was released
// but stays taken.
func isOurs(id string) (ours, kept bool) {
	if len(id) != idLen {
		return false, false
	}
	number := binary.BigEndian.Uint32([]byte(id[holderLen:]))
	kept = number <= math.MaxInt32 && number > math.MaxInt32-maxPermits
	return kept || number > math.MaxUint32-maxPermits, kept
}

func permitsKeys(name string) []string { return []string{name, ids(name), PermitsChannel(name)} }

// permits formats a number of permits for a script. A number above maxPermits becomes maxPermits+1,
// which is also too large.
func permits(n int) string { return strconv.Itoa(min(n, maxPermits+1)) }

// AcquirePermits makes one attempt to acquire permits. req.Owner must be a result of [holder].
// [ParsePermits] reads its reply.
func (d Dialect) AcquirePermits(req backend.AcquireRequest) Call {
	return Call{d.script(permitsAcquireScript, shardedPermitsAcquireScript), permitsKeys(req.Name),
		[]string{
			millis(req.Lease), req.Owner, permits(req.Permits),
			strconv.Itoa(min(req.Limit, maxLimit)), strconv.Itoa(maxPermits),
		}}
}

// ReleasePermits releases permits. [ParseRelease] reads its reply. The outcome [backend.NotHeld] is
// reliable.
func (d Dialect) ReleasePermits(req backend.ReleaseRequest) Call {
	return Call{
		d.script(permitsReleaseScript, shardedPermitsReleaseScript), permitsKeys(req.Name),
		[]string{req.Owner, permits(req.Permits)},
	}
}

// KeepPermits releases permits, but they stay taken for a time. [ParseKeep] reads its reply. The
// outcome [backend.NotHeld] is reliable.
func (d Dialect) KeepPermits(req backend.ReleaseRequest) Call {
	return Call{d.script(permitsReleaseKeepScript, shardedPermitsReleaseKeepScript),
		permitsKeys(req.Name),
		[]string{req.Owner, permits(req.Permits), millis(req.Keep)}}
}

// RenewPermits renews up to a hundred holds, and uses the lease of the first request for all of
// them. [ParseRenewals] reads its reply. A reply that a hold is gone is reliable. An error doesn't
// show which hold caused it.
func (d Dialect) RenewPermits(reqs []backend.RenewRequest) Call {
	keys, args := make([]string, 0, 3*len(reqs)), []string{millis(reqs[0].Lease)}
	for _, req := range reqs {
		keys, args = append(keys, permitsKeys(req.Name)...),
			append(args, req.Owner, permits(req.Permits))
	}
	return Call{d.script(permitsRenewScript, shardedPermitsRenewScript), keys, args}
}

// ForceReleasePermits releases all permits of all owners. [ParseForceRelease] reads its reply.
func (d Dialect) ForceReleasePermits(req backend.ForceReleaseRequest) Call {
	return Call{d.script(permitsForceScript, shardedPermitsForceScript), permitsKeys(req.Name), nil}
}

// LookPermits asks how many permits are acquired, and how many of these an owner holds.
// [ParseLookPermits] reads its reply.
func LookPermits(req backend.LookRequest) Call {
	return call(permitsLookScript, 2, req.Name, ids(req.Name), req.Owner, permits(req.Permits))
}

// ParsePermits reads the reply to AcquirePermits. The reply is the number of permits that the owner
// now holds. If the owner got none, the reply is the time until the first acquired permit expires,
// or a code for the reason why the request is impossible.
func ParsePermits(reply any) (backend.AcquireResult, error) {
	switch reply {
	case int64(-2):
		return backend.AcquireResult{}, &backend.Error{
			Kind: backend.Refused, Err: backend.ErrNoLimit,
		}
	case int64(-3):
		return backend.AcquireResult{}, &backend.Error{
			Kind: backend.Refused, Err: backend.ErrTooMany,
		}
	case int64(-4):
		return backend.AcquireResult{}, &backend.Error{Kind: backend.Refused, Err: errTooManyAtOnce}
	case nil:
		return backend.AcquireResult{}, unexpected("acquire", reply)
	default:
		return ParseGrant(reply)
	}
}

var errTooManyAtOnce = fmt.Errorf("%w: at most %d can be acquired at once", backend.ErrTooMany,
	maxPermits)

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
	if !ok || !also || !too || !told && words[3] != nil || out < 0 || count < 0 || count > out ||
		left < -1 {
		return backend.LookResult{}, unexpected("look", reply)
	}
	if req.Limit > 0 {
		total = int64(req.Limit)
	} else if !told {
		return backend.LookResult{}, &backend.Error{Kind: backend.Refused, Err: backend.ErrNoLimit}
	}
	return backend.LookResult{Held: out > 0, Count: int(count), Remaining: duration(left),
		Available: int(max(total-out, 0))}, nil
}

func lookedPermits(
	req backend.LookRequest, replies []Reply,
) (res backend.LookResult, certain bool, err error) {
	res, err = parse(replies[0], func(reply any) (backend.LookResult, error) {
		return ParseLookPermits(req, reply)
	})
	return res, true, err
}

// Available decodes a message on the channel of a semaphore. The message is the number of permits
// that its sender believes to be available. Available ignores the number, since a client with a
// larger limit than the sender's can find more permits available.
func Available(message string) (pubsub.Meaning, bool) {
	_, err := strconv.ParseInt(message, 10, 64)
	return pubsub.Freed, err == nil
}

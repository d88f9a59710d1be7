package redisson

import (
	_ "embed"
	"strconv"

	"github.com/seed951563bd/distsync/backend"
)

// A fenced lock is what Redisson's RFencedLock is: a plain lock, which all other steps take it for, and a key
// beside it with the number of the last acquisition, which never expires. Redisson counts by one. Here a
// number is that of the microseconds since 1970 by the server's clock, or one more than the last if
// that is larger: so it also grows where the key was lost.

//go:embed fencedacquire.lua
var fencedAcquireText string

var fencedAcquireScript = newScript(isFirstLockText + fencedAcquireText)

// AcquireFenced is one attempt to lock with a number. An owner who holds the lock already keeps the number.
// [ParseFenced] reads its reply.
func AcquireFenced(req backend.AcquireRequest) Call {
	return call(fencedAcquireScript, 2, req.Name, tokenKey(req.Name), millis(req.Lease), req.Owner)
}

func tokenKey(name string) string { return tagged("redisson_lock_token:", name, "") }

// ParseFenced reads the reply to [AcquireFenced]: the owner's holds with the number of the lock, or as
// [ParseAcquire].
func ParseFenced(reply any) (backend.AcquireResult, error) {
	words, granted := reply.([]any)
	if !granted {
		return ParseGrant(reply)
	}
	if len(words) == 2 {
		text, _ := words[1].(string)
		token, err := strconv.ParseUint(text, 10, 64)
		res, odd := ParseGrant(words[:1])
		if err == nil && token > 0 && odd == nil {
			res.Token = token
			return res, nil
		}
	}
	return backend.AcquireResult{}, unexpected("acquire", reply)
}

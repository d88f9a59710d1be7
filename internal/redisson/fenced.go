package redisson

import (
	_ "embed"
	"strconv"

	"github.com/seed951563bd/distsync/backend"
)

// A fenced lock is stored like Redisson's RFencedLock. It is a plain lock, and all steps except
// the acquisition treat it as one. A second key, which never expires, stores the token of the last
// acquisition. In Redisson, the token is the number of acquisitions. Ours is the number of
// microseconds since 1970 by the server's clock, or the last token plus one if that is larger. So
// tokens grow even if the key is lost.

//go:embed fencedacquire.lua
var fencedAcquireText string

var fencedAcquireScript = newScript(isFirstLockText + fencedAcquireText)

// AcquireFenced makes one attempt to acquire a fenced lock, which has a token. An owner that
// already holds the lock keeps its token. [ParseFenced] reads the reply.
func AcquireFenced(req backend.AcquireRequest) Call {
	return call(fencedAcquireScript, 2, req.Name, tokenKey(req.Name), millis(req.Lease), req.Owner)
}

func tokenKey(name string) string { return tagged("redisson_lock_token:", name, "") }

// ParseFenced reads the reply to [AcquireFenced], which contains the count of the owner's holds and
// the token. If the lock was not acquired, the reply is the same as for [Acquire].
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

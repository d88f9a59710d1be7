package redisson

import (
	"fmt"
	"strconv"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// The functions whose names begin with Parse take a reply as client libraries decode it from RESP:
// nil, an int64, a string, or a []any of these. For an unexpected reply they return an error of
// kind [backend.Unknown], since the server may have carried out the command.

// ParseAcquire reads the reply to [Acquire]. The reply is nil if the lock was acquired. Otherwise
// it is the time until the current hold expires.
func ParseAcquire(reply any) (backend.AcquireResult, error) {
	if reply == nil {
		return backend.AcquireResult{Acquired: true}, nil
	}
	n, ok := reply.(int64)
	if !ok || n < -1 {
		return backend.AcquireResult{}, unexpected("acquire", reply)
	}
	return backend.AcquireResult{Remaining: duration(n)}, nil
}

// ParseRelease reads the reply to [Release].
func ParseRelease(reply any) (backend.ReleaseResult, error) {
	switch reply {
	case nil:
		return backend.ReleaseResult{Outcome: backend.NotHeld}, nil
	case int64(0):
		return backend.ReleaseResult{Outcome: backend.Left}, nil
	case int64(1):
		return backend.ReleaseResult{Outcome: backend.Freed}, nil
	default:
		return backend.ReleaseResult{}, unexpected("release", reply)
	}
}

// ParseRenew reads the reply to [Renew].
func ParseRenew(reply any) (backend.RenewResult, error) {
	held, err := parseBool("renew", reply)
	return backend.RenewResult{Held: held}, err
}

// ParseReleaseAgain reads the reply to [Dialect.ReleaseAgain].
func ParseReleaseAgain(reply any) (backend.ReleaseResult, error) {
	if reply == foreign {
		return backend.ReleaseResult{}, errForeign
	}
	return ParseRelease(reply)
}

// ParseRenewAgain reads the reply to [RenewAgain].
func ParseRenewAgain(reply any) (backend.RenewResult, error) {
	if reply == foreign {
		return backend.RenewResult{}, errForeign
	}
	return ParseRenew(reply)
}

// ParseKeep reads the reply to a release with Keep.
func ParseKeep(reply any) (backend.ReleaseResult, error) {
	if reply == int64(2) {
		return backend.ReleaseResult{Outcome: backend.Kept}, nil
	}
	return ParseReleaseAgain(reply)
}

// ParseIsForeign reads the reply to [IsForeign]. If the answer is yes, it returns the error for the
// step.
func ParseIsForeign(reply any) error {
	if reply == foreign {
		return errForeign
	}
	return nil
}

// ParseIsKept reads the reply to [IsKept].
func ParseIsKept(reply any) (bool, error) {
	if reply == foreign {
		return false, errForeign
	}
	return parseBool("is kept", reply)
}

// foreign is the reply of our scripts if the key isn't a lock of the expected kind.
var foreign any = int64(-1)

// ParseForceRelease reads the reply to [ForceRelease].
func ParseForceRelease(reply any) (backend.ForceReleaseResult, error) {
	if reply == foreign {
		return backend.ForceReleaseResult{}, errForeign
	}
	released, err := parseBool("force release", reply)
	return backend.ForceReleaseResult{Released: released}, err
}

// ParseCount reads the reply to HGET key owner, which is the number of the owner's holds.
func ParseCount(reply any) (int, error) {
	if reply == nil {
		return 0, nil
	}
	s, ok := reply.(string)
	if !ok {
		return 0, unexpected("HGET", reply)
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, unexpected("HGET", reply)
	}
	return n, nil
}

// look returns the commands that ask about a lock and one owner. Without an owner, they still
// include an HGET, for the field "mode", because HGET returns an error if the key isn't a hash.
func look(req backend.LookRequest) []Command {
	field := req.Owner
	if field == "" {
		field = "mode"
	}
	return []Command{ask("EXISTS", req.Name), ask("HGET", req.Name, field), ask("PTTL", req.Name)}
}

// looked reads the replies to the commands that look returns. The result certain is true if the
// lock is free, or if the owner holds it and the key has an expiry.
func looked(
	req backend.LookRequest, replies []Reply,
) (res backend.LookResult, certain bool, err error) {
	for _, r := range replies {
		if r.Err != nil {
			return backend.LookResult{}, false, r.Err
		}
	}
	var holds any
	if req.Owner != "" {
		holds = replies[1].Value
	}
	res, err = ParseLook(replies[0].Value, holds, replies[2].Value)
	return res, !res.Held || res.Remaining >= 0 && res.Count > 0, err
}

// ParseLook reads the replies to EXISTS key, HGET key owner and PTTL key, sent in this order.
// Without an owner, holds is nil. The lock may have changed hands between the commands. If the
// first or the last reply says that the lock was free, ParseLook reports it as free, since it was
// free at one moment.
func ParseLook(exists, holds, pttl any) (backend.LookResult, error) {
	there, err := parseBool("EXISTS", exists)
	if err != nil {
		return backend.LookResult{}, err
	}
	count, err := ParseCount(holds)
	if err != nil {
		return backend.LookResult{}, err
	}
	n, ok := pttl.(int64)
	if !ok || n < -2 {
		return backend.LookResult{}, unexpected("PTTL", pttl)
	}
	if !there || n == -2 {
		return backend.LookResult{}, nil
	}
	return backend.LookResult{Held: true, Count: count, Remaining: duration(n)}, nil
}

func parseBool(what string, reply any) (bool, error) {
	switch reply {
	case int64(0):
		return false, nil
	case int64(1):
		return true, nil
	default:
		return false, unexpected(what, reply)
	}
}

// duration converts a PTTL of -1 or more, where -1 means that the key never expires. It caps a
// value that is too large for a Duration.
func duration(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(ms, most)) * time.Millisecond
}

func unexpected(what string, reply any) error {
	return &backend.Error{
		Kind: backend.Unknown, Err: fmt.Errorf("unexpected reply to %s: %.200q", what,
			fmt.Sprint(reply)),
	}
}

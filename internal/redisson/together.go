package redisson

import (
	_ "embed"
	"slices"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

//go:embed renewtogether.lua
var renewTogetherText string

var renewTogetherScript = newScript(renewTogetherText)

// MaxTogether is how many holds one script renews at most. It bounds for how long a server does nothing
// else.
const MaxTogether = 100

// Prefixed returns the requests of a batch with a prefix before the names.
func Prefixed(prefix string, reqs []backend.RenewRequest) []backend.RenewRequest {
	if prefix == "" {
		return reqs
	}
	reqs = slices.Clone(reqs) // which are not ours
	for i := range reqs {
		reqs[i].Name = prefix + reqs[i].Name
	}
	return reqs
}

// Renewable returns the requests of a batch that pass a check, by their indexes. The others are answered
// with its error.
func Renewable(reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error), check func(backend.RenewRequest) error) []int {
	chosen := make([]int, 0, len(reqs))
	for i, req := range reqs {
		if err := check(req); err != nil {
			answer(i, backend.RenewResult{}, err)
		} else {
			chosen = append(chosen, i)
		}
	}
	return chosen
}

// Renewals are requests of a batch that one script carries out, by their indexes there.
type Renewals struct {
	Requests []int
	Call     Call
}

// RenewTogether groups requests of a batch, for a server that has all of them: not for a cluster,
// where the names of one script must be in one slot. [Renewals.Answer] reads the
// reply to each group.
//
// The script does for each name what [Renew] does. Its yes can be relied on. For everything else ask
// with Renew: an error is about one of the names, nobody knows which; and a no may come from a proxy
// that has sent the script where only the first of its names is.
func RenewTogether(reqs []backend.RenewRequest, chosen []int) (groups []Renewals) {
	byLease := make(map[time.Duration][]int)
	for _, i := range chosen {
		lease := reqs[i].Lease
		byLease[lease] = append(byLease[lease], i)
		if len(byLease[lease]) == MaxTogether {
			groups = append(groups, renewTogether(reqs, byLease[lease]))
			delete(byLease, lease)
		}
	}
	for _, requests := range byLease {
		groups = append(groups, renewTogether(reqs, requests))
	}
	return groups
}

func renewTogether(reqs []backend.RenewRequest, requests []int) Renewals {
	n := len(requests)
	words := make([]string, 2*n+1)
	words[n] = millis(reqs[requests[0]].Lease)
	for i, index := range requests {
		words[i], words[n+1+i] = reqs[index].Name, reqs[index].Owner
	}
	return Renewals{requests, call(renewTogetherScript, n, words...)}
}

// Answer answers the requests for which the reply says yes, and returns the others. If there was no
// reply it answers all with the error. An error that is itself the server's reply is nobody's.
func (r Renewals) Answer(reply any, err error, refused bool, answer func(int, backend.RenewResult, error)) (rest []int) {
	held, odd := r.parse(reply)
	for i, request := range r.Requests {
		switch {
		case err != nil && !refused:
			answer(request, backend.RenewResult{}, err)
		case err == nil && odd == nil && held[i]:
			answer(request, backend.RenewResult{Held: true}, nil)
		default:
			rest = append(rest, request)
		}
	}
	return rest
}

func (r Renewals) parse(reply any) ([]bool, error) {
	replies, ok := reply.([]any)
	if !ok || len(replies) != len(r.Requests) {
		return nil, unexpected("renew together", reply)
	}
	held := make([]bool, len(replies))
	for i, reply := range replies {
		var err error
		if held[i], err = parseBool("renew together", reply); err != nil {
			return nil, err
		}
	}
	return held, nil
}

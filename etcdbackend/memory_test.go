package etcdbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/depth"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/membackend"
)

// TestAsInMemory: steps in any order are answered as they are in memory.
func TestAsInMemory(t *testing.T) {
	t.Parallel()
	server := testservers.Etcd(t)
	kinds := []backend.Kind{
		backend.Read, backend.Write, backend.Read, backend.Write, backend.Exclusive, backend.Fenced,
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	memory := membackend.New()
	var sessions [3][2]backend.Session // of three clients, in etcd and in memory
	for i := range sessions {
		sessions[i] = [2]backend.Session{open(t, connect(t, server.Addr)), memory.Open()}
	}
	sequences := depth.Of(5, 20, 60)
	for sequence := range sequences {
		name := fmt.Sprint("lock ", sequence)
		var told strings.Builder
		for range 40 {
			owner, kind := r.IntN(3), kinds[r.IntN(len(kinds))]
			length := time.Duration(1+r.IntN(3)) * lease
			waited, place := time.Duration(r.IntN(4))*time.Hour, time.Duration(r.IntN(2))*time.Hour
			step := r.IntN(12)
			who := fmt.Sprint("owner ", owner)
			if kind == backend.Exclusive || kind == backend.Fenced {
				who += " of another kind" // an owner is of one kind
			}
			var answers [2]string
			var remaining [2]time.Duration
			for i, s := range sessions[owner] {
				answers[i], remaining[i] = anyStep(t.Context(), s, step, kind, name, who, length,
					waited, place)
			}
			fmt.Fprintf(&told, "owner %d, %v, %v, waited %v: %s\n", owner, kind, length, waited,
				answers[0])
			if answers[0] != answers[1] {
				t.Fatalf("%sin memory: %s; seed %d", &told, answers[1], seed)
			}
			if off := (remaining[0] - remaining[1]).Abs(); remaining[0] >= 0 &&
				off > 3*time.Second {
				t.Fatalf("%sRemaining %v, in memory %v; seed %d", &told, remaining[0], remaining[1],
					seed)
			}
		}
	}
}

// anyStep takes a step and words its answer.
func anyStep(
	ctx context.Context, s backend.Session, step int, kind backend.Kind, name, owner string,
	length, waited, place time.Duration,
) (answer string, remaining time.Duration) {
	var err error
	switch {
	case step < 5:
		var res backend.AcquireResult
		res, err = s.Acquire(ctx, backend.AcquireRequest{
			Kind: kind, Name: name, Owner: owner, Lease: length, Reentry: true, Waited: waited,
			Place: place,
		})
		answer, remaining = fmt.Sprintf("acquire, place %v: %v, count %d, token %v", place,
			res.Acquired, res.Count, res.Token != 0), res.Remaining
	case step < 9:
		var res backend.ReleaseResult
		res, err = s.Release(ctx, backend.ReleaseRequest{
			Kind: kind, Name: name, Owner: owner, Lease: length,
		})
		answer = "release: " + res.Outcome.String()
	case step < 10:
		var res backend.RenewResult
		res, err = s.Renew(ctx, backend.RenewRequest{
			Kind: kind, Name: name, Owner: owner, Lease: length,
		})
		answer = fmt.Sprint("renew: ", res.Held)
	case step < 11:
		var res backend.LookResult
		res, err = s.Look(ctx, backend.LookRequest{Kind: kind, Name: name, Owner: owner})
		answer, remaining = fmt.Sprintf("look: %v, %d", res.Held, res.Count), res.Remaining
	default:
		var res backend.ForceReleaseResult
		res, err = s.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: kind, Name: name})
		answer = fmt.Sprint("force: ", res.Released)
	}
	switch {
	case errors.Is(err, backend.ErrConflict):
		return answer[:4] + ": another kind", 0
	case err != nil:
		return err.Error(), 0
	}
	return answer, remaining
}

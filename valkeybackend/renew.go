package valkeybackend

import (
	"context"
	"slices"
	"sync"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// maxBatch is how many renewals go into one pipeline. It bounds what a server must buffer, and how
// long other commands wait behind a batch.
const maxBatch = 1000

// A renewal is a request of a batch, with its index there.
type renewal struct {
	index int
	call  redisson.Call
	cmd   valkey.Completed // to be sent first, once
}

// RenewBatch sends the requests in pipelines, in a cluster to each node its own: the client would
// send one pipeline to several nodes, too, but answer when the slowest has answered.
func (s *session) RenewBatch(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) {
	var running sync.WaitGroup
	for _, group := range s.renewals(ctx, reqs, answer) {
		running.Go(func() {
			for batch := range slices.Chunk(group, maxBatch) {
				s.renewBatch(ctx, batch, answer)
			}
		})
	}
	if s.slots != nil {
		s.slots.refresh(ctx) // for the next time: nobody waits for a node that hangs
	}
	running.Wait()
}

// renewals groups the requests by the node that they go to; as long as that isn't known, by slot. If a
// slot has moved the client still follows. Those that must not be sent are answered.
func (s *session) renewals(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) map[string][]renewal {
	groups := make(map[string][]renewal)
	for i, req := range reqs {
		if err := s.check(ctx, req.Kind, req.Name); err != nil {
			answer(i, backend.RenewResult{}, err)
			continue
		}
		call := redisson.Renew(req)
		cmd := s.evalSHA(call)
		var node string
		if s.slots != nil {
			node = s.slots.near(cmd.Slot())
		}
		groups[node] = append(groups[node], renewal{i, call, cmd})
	}
	return groups
}

// renewBatch renews in one pipeline, and in another what the server did not know the script for.
func (s *session) renewBatch(ctx context.Context, batch []renewal, answer func(int, backend.RenewResult, error)) {
	var again []renewal
	for i, a := range s.sendBatch(ctx, batch) {
		if a.again {
			r := batch[i]
			r.cmd = s.eval(r.call)
			again = append(again, r)
			continue
		}
		res, err := parse(a, redisson.ParseRenew)
		answer(batch[i].index, res, err)
	}
	if len(again) == 0 {
		return
	}
	for i, a := range s.sendBatch(ctx, again) {
		res, err := parse(a, redisson.ParseRenew)
		answer(again[i].index, res, err)
	}
}

func (s *session) sendBatch(ctx context.Context, batch []renewal) []answer {
	cmds := make([]valkey.Completed, len(batch))
	for i, r := range batch {
		cmds[i] = r.cmd
	}
	return s.sendNow(ctx, cmds)
}

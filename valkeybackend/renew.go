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

// RenewBatch sends the requests in pipelines, in a cluster those of each slot in one of their own:
// valkey-go doesn't tell which slots are on one node, and a pipeline for several nodes is answered
// when the slowest has answered. What goes to one node at once it writes together all the same.
func (s *session) RenewBatch(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) {
	var running sync.WaitGroup
	for _, group := range s.renewals(ctx, reqs, answer) {
		running.Go(func() {
			for batch := range slices.Chunk(group, maxBatch) {
				s.renewBatch(ctx, batch, answer)
			}
		})
	}
	running.Wait()
}

// renewals groups the requests by the slot that they are for, without a cluster in one group. Those
// that must not be sent are answered.
func (s *session) renewals(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) map[uint16][]renewal {
	groups := make(map[uint16][]renewal)
	for i, req := range reqs {
		if err := s.check(ctx, req.Kind, req.Name); err != nil {
			answer(i, backend.RenewResult{}, err)
			continue
		}
		call := redisson.Renew(req)
		cmd := s.evalSHA(call)
		var slot uint16
		if s.cluster {
			slot = cmd.Slot()
		}
		groups[slot] = append(groups[slot], renewal{i, call, cmd})
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
	return s.send(ctx, cmds...)
}

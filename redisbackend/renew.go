package redisbackend

import (
	"context"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

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
}

// RenewBatch sends the requests in pipelines, to each node of a cluster its own.
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

// renewals groups the requests by the node that they go to. Those that must not be sent, or for
// which there is no node, are answered.
func (s *session) renewals(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) map[*redis.Client][]renewal {
	groups := make(map[*redis.Client][]renewal)
	for i, req := range reqs {
		err := s.check(ctx, req.Kind, req.Name)
		var node *redis.Client // nil stands for the only one
		if err == nil && s.cluster != nil {
			if node, err = s.cluster.MasterForKey(ctx, req.Name); err != nil {
				err = notSent(err)
			}
		}
		if err != nil {
			answer(i, backend.RenewResult{}, err)
			continue
		}
		groups[node] = append(groups[node], renewal{i, redisson.Renew(req)})
	}
	return groups
}

// renewBatch renews in one pipeline, and in another what the server did not know the script for.
func (s *session) renewBatch(ctx context.Context, batch []renewal, answer func(int, backend.RenewResult, error)) {
	var again []renewal
	for i, cmd := range s.sendBatch(ctx, batch, evalSHA) {
		if cmd.unknownToServer() {
			again = append(again, batch[i])
			continue
		}
		reply, err := cmd.reply()
		res, err := parse(reply, err, redisson.ParseRenew)
		answer(batch[i].index, res, err)
	}
	if len(again) == 0 {
		return
	}
	for i, cmd := range s.sendBatch(ctx, again, eval) {
		reply, err := cmd.reply()
		res, err := parse(reply, err, redisson.ParseRenew)
		answer(again[i].index, res, err)
	}
}

// sendBatch sends a batch. It uses the session's client rather than the node's, which would not follow a
// slot that has moved.
func (s *session) sendBatch(ctx context.Context, batch []renewal, script func(context.Context, redisson.Call) command) []command {
	cmds := make([]command, len(batch))
	for i, r := range batch {
		cmds[i] = script(ctx, r.call)
	}
	s.pipeline(ctx, s.client, cmds...)
	return cmds
}

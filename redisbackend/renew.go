package redisbackend

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// maxBatch is how many renewals go into one pipeline. It bounds what a server must buffer, and how
// long other commands wait behind a batch.
const maxBatch = 1000

// maxScripts is the same for scripts that renew many holds each.
const maxScripts = 100

// A renewal is a request of a batch, with its index there.
type renewal struct {
	index int
	req   backend.RenewRequest
}

// RenewBatch sends the requests in pipelines, to each node of a cluster its own. Where there is only one
// server, most of them share a script.
func (s *session) RenewBatch(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) {
	reqs = redisson.Prefixed(s.prefix, reqs)
	chosen := redisson.Renewable(reqs, answer, func(req backend.RenewRequest) error {
		return s.check(ctx, req.Kind, req.Name)
	})
	if s.cluster == nil && len(chosen) > 1 {
		chosen = s.renewTogether(ctx, reqs, chosen, answer)
	}
	var running sync.WaitGroup
	for _, group := range s.renewals(ctx, reqs, chosen, answer) {
		running.Go(func() {
			for batch := range slices.Chunk(group, maxBatch) {
				s.renewBatch(ctx, batch, answer)
			}
		})
	}
	running.Wait()
}

// renewTogether renews many holds with few scripts. It returns the requests that are to be sent each by
// itself.
func (s *session) renewTogether(ctx context.Context, reqs []backend.RenewRequest, chosen []int, answer func(int, backend.RenewResult, error)) (rest []int) {
	for groups := range slices.Chunk(redisson.RenewTogether(reqs, chosen), maxScripts) {
		calls := make([]redisson.Call, len(groups))
		for i, g := range groups {
			calls[i] = g.Call
		}
		for i, cmd := range s.scripts(ctx, calls) {
			reply, err := cmd.reply()
			var refusal redis.Error
			rest = append(rest, groups[i].Answer(reply, err, errors.As(err, &refusal), answer)...)
		}
	}
	return rest
}

// renewals groups requests by the node that they go to. Those for which there is no node are answered.
func (s *session) renewals(ctx context.Context, reqs []backend.RenewRequest, chosen []int, answer func(int, backend.RenewResult, error)) map[*redis.Client][]renewal {
	groups := make(map[*redis.Client][]renewal)
	for _, i := range chosen {
		var node *redis.Client // nil stands for the only one
		if s.cluster != nil {
			var err error
			if node, err = s.cluster.MasterForKey(ctx, reqs[i].Name); err != nil {
				answer(i, backend.RenewResult{}, notSent(err))
				continue
			}
		}
		groups[node] = append(groups[node], renewal{i, reqs[i]})
	}
	return groups
}

// renewBatch renews holds each with a script of its own, and asks again where the answer is no.
func (s *session) renewBatch(ctx context.Context, batch []renewal, answer func(int, backend.RenewResult, error)) {
	var no []renewal
	s.renewEach(ctx, batch, redisson.Renew, redisson.ParseRenew, func(r renewal, res backend.RenewResult, err error) {
		if err == nil && !res.Held {
			no = append(no, r)
			return
		}
		answer(r.index, res, err)
	})
	s.renewEach(ctx, no, redisson.RenewAgain, redisson.ParseRenewAgain, func(r renewal, res backend.RenewResult, err error) {
		answer(r.index, res, err)
	})
}

func (s *session) renewEach(ctx context.Context, batch []renewal, script func(backend.RenewRequest) redisson.Call,
	parser func(any) (backend.RenewResult, error), answer func(renewal, backend.RenewResult, error)) {
	if len(batch) == 0 {
		return
	}
	calls := make([]redisson.Call, len(batch))
	for i, r := range batch {
		calls[i] = script(r.req)
	}
	for i, cmd := range s.scripts(ctx, calls) {
		reply, err := cmd.reply()
		res, err := parse(reply, err, parser)
		answer(batch[i], res, err)
	}
}

// scripts carries out scripts in one pipeline, and in another those that the server did not know.
func (s *session) scripts(ctx context.Context, calls []redisson.Call) []*command {
	cmds := make([]*command, len(calls))
	var unknown []int
	for i, call := range calls {
		cmds[i] = evalSHA(ctx, call)
	}
	s.pipeline(ctx, s.client, cmds...)
	for i, cmd := range cmds {
		if cmd.unknownToServer() {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) == 0 {
		return cmds
	}
	again := make([]*command, len(unknown))
	for i, which := range unknown {
		again[i] = eval(ctx, calls[which])
		cmds[which] = again[i]
	}
	s.pipeline(ctx, s.client, again...)
	return cmds
}

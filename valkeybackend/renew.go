package valkeybackend

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/valkey-io/valkey-go"

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

// RenewBatch sends the requests in pipelines, in a cluster to each node its own: the client would
// send one pipeline to several nodes, too, but answer when the slowest has answered. Where there is only
// one server, most of them share a script.
func (s *session) RenewBatch(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) {
	reqs = redisson.Prefixed(s.prefix, reqs)
	chosen := redisson.Renewable(reqs, answer, func(req backend.RenewRequest) error {
		return s.check(ctx, req.Kind, req.Name)
	})
	if s.slots == nil && len(chosen) > 1 {
		chosen = s.renewTogether(ctx, reqs, chosen, answer)
	}
	var running sync.WaitGroup
	for _, group := range s.renewals(reqs, chosen) {
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

// renewTogether renews many holds with few scripts. It returns the requests that are to be sent each by
// itself.
func (s *session) renewTogether(ctx context.Context, reqs []backend.RenewRequest, chosen []int, answer func(int, backend.RenewResult, error)) (rest []int) {
	for groups := range slices.Chunk(redisson.RenewTogether(reqs, chosen), maxScripts) {
		calls := make([]redisson.Call, len(groups))
		for i, g := range groups {
			calls[i] = g.Call
		}
		for i, a := range s.scripts(ctx, calls) {
			_, refused := errors.AsType[*valkey.ValkeyError](a.err)
			rest = append(rest, groups[i].Answer(a.reply, a.err, refused, answer)...)
		}
	}
	return rest
}

// renewals groups requests by the node that they go to; as long as that isn't known, by slot. If a
// slot has moved the client still follows.
func (s *session) renewals(reqs []backend.RenewRequest, chosen []int) map[string][]renewal {
	groups := make(map[string][]renewal)
	for _, i := range chosen {
		var node string
		if s.slots != nil {
			node = s.slots.near(redisson.Slot(reqs[i].Name))
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
	for i, a := range s.scripts(ctx, calls) {
		res, err := parse(a, parser)
		answer(batch[i], res, err)
	}
}

// scripts carries out scripts in one pipeline, and in another those that the server did not know.
func (s *session) scripts(ctx context.Context, calls []redisson.Call) []answer {
	cmds := make([]valkey.Completed, len(calls))
	for i, call := range calls {
		cmds[i] = s.evalSHA(call)
	}
	answers := s.sendNow(ctx, cmds)
	var unknown []int
	for i, a := range answers {
		if a.again {
			unknown = append(unknown, i)
		}
	}
	if len(unknown) == 0 {
		return answers
	}
	cmds = cmds[:0]
	for _, which := range unknown {
		cmds = append(cmds, s.eval(calls[which]))
	}
	for i, a := range s.sendNow(ctx, cmds) {
		answers[unknown[i]] = a
	}
	return answers
}

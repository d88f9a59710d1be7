package redisson

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

const (
	// maxBatch is how many renewals go into one pipeline. It bounds what a server must buffer, and how
	// long other commands wait behind a batch.
	maxBatch = 1000

	// maxScripts is the same for scripts that renew many holds each.
	maxScripts = 100

	// maxTogether is how many holds one script renews at most, where one with several permits counts as so many. It bounds for
	// how long a server does nothing else.
	maxTogether = 100
)

// A batch is what RenewBatch was asked for.
type batch struct {
	*session
	reqs   []backend.RenewRequest // our own
	kinds  []*kind                // of each
	answer func(int, backend.RenewResult, error)
}

// RenewBatch sends the requests in pipelines, to each node of a cluster its own: clients would send one to
// several nodes, too, but answer when the slowest has answered. Where there is only one server, most of
// them share a script.
func (s *session) RenewBatch(ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error)) {
	b := &batch{s, slices.Clone(reqs), make([]*kind, len(reqs)), answer}
	chosen := b.choose(ctx)
	if !s.Cluster && len(chosen) > 1 {
		chosen = b.together(ctx, chosen)
	}
	var running sync.WaitGroup
	name := func(i int) string { return b.reqs[i].Name }
	for _, group := range b.byNode(ctx, chosen, name, func(i int, err error) { b.answer(i, backend.RenewResult{}, err) }) {
		running.Go(func() {
			for some := range slices.Chunk(group, maxBatch) {
				b.apart(ctx, some)
			}
		})
	}
	if s.Cluster {
		s.Transport.Refresh(ctx) // nobody waits for a node that hangs
	}
	running.Wait()
}

// choose returns the requests that can be sent, by their indexes, and makes them what is sent. The others are
// answered.
func (b *batch) choose(ctx context.Context) (chosen []int) {
	var down error // of the only server
	if !b.Cluster && len(b.reqs) > 0 {
		down = b.Transport.Reach(ctx, b.Prefix+b.reqs[0].Name)
	}
	chosen = make([]int, 0, len(b.reqs))
	for i := range b.reqs {
		req := &b.reqs[i]
		req.Name = b.Prefix + req.Name
		k, err := b.check(ctx, req.Kind, req.Name, req.Owner)
		if err == nil {
			err = down
		}
		if err != nil {
			b.answer(i, backend.RenewResult{}, err)
			continue
		}
		b.kinds[i], req.Owner = k, k.called(req.Owner)
		chosen = append(chosen, i)
	}
	return chosen
}

// byNode groups requests by the node that they go to. Those for which there is none are failed.
func (s *session) byNode(ctx context.Context, chosen []int, name func(int) string, fail func(int, error)) map[string][]int {
	groups := make(map[string][]int)
	for _, i := range chosen {
		var node string // of the only server
		if s.Cluster {
			var err error
			if node, err = s.Transport.Node(ctx, name(i)); err != nil {
				fail(i, err)
				continue
			}
		}
		groups[node] = append(groups[node], i)
	}
	return groups
}

// together renews many holds with few scripts, where one server has all of them. It returns the requests
// that are to be sent each by itself.
func (b *batch) together(ctx context.Context, chosen []int) (rest []int) {
	for groups := range slices.Chunk(b.alike(chosen), maxScripts) {
		calls := make([]Call, len(groups))
		for i, group := range groups {
			calls[i] = b.kinds[group[0]].renewTogether(b.Dialect, b.pick(group))
		}
		for i, r := range b.runBatch(ctx, calls) {
			rest = append(rest, b.answerTogether(groups[i], r)...)
		}
	}
	return rest
}

// alike groups requests that one script can carry out.
func (b *batch) alike(chosen []int) (groups [][]int) {
	type script struct {
		kind  backend.Kind
		lease time.Duration
	}
	open, load := make(map[script][]int), make(map[script]int)
	for _, i := range chosen {
		a := script{b.reqs[i].Kind, b.reqs[i].Lease}
		open[a] = append(open[a], i)
		if load[a] += max(b.reqs[i].Permits, 1); load[a] >= maxTogether {
			groups = append(groups, open[a])
			delete(open, a)
			delete(load, a)
		}
	}
	for _, group := range open {
		groups = append(groups, group)
	}
	return groups
}

// pick returns the requests of a group.
func (b *batch) pick(group []int) []backend.RenewRequest {
	reqs := make([]backend.RenewRequest, len(group))
	for i, index := range group {
		reqs[i] = b.reqs[index]
	}
	return reqs
}

// answerTogether answers the requests of a group for which the reply says yes, and returns the others.
//
// A yes can be relied on. Everything else is to be asked for each by itself: a refusal is about one of the
// names, nobody knows which; and a no may come from a proxy that has sent the script where only
// the first of its names is. If there was no reply all are answered with the error.
func (b *batch) answerTogether(group []int, r Reply) (rest []int) {
	results, odd := ParseRenewals(r.Value, len(group))
	for i, request := range group {
		switch {
		case r.Err != nil && r.Refusal == "":
			b.answer(request, backend.RenewResult{}, r.Err)
		case r.Err == nil && odd == nil && results[i].Held:
			b.answer(request, results[i], nil)
		default:
			rest = append(rest, request)
		}
	}
	return rest
}

// apart renews holds each with a script of its own, and asks again where the answer is no.
func (b *batch) apart(ctx context.Context, group []int) {
	calls := make([]Call, len(group))
	for i, index := range group {
		calls[i] = b.kinds[index].renew(b.Dialect, b.reqs[index])
	}
	var no []int
	for i, r := range b.runBatch(ctx, calls) {
		k := b.kinds[group[i]]
		res, err := parse(r, k.renewed)
		if err == nil && !res.Held && k.renewAgain != nil {
			no = append(no, group[i])
			continue
		}
		b.answer(group[i], res, err)
	}
	calls = calls[:0]
	for _, index := range no {
		calls = append(calls, b.kinds[index].renewAgain(b.reqs[index]))
	}
	for i, r := range b.runBatch(ctx, calls) {
		res, err := parse(r, b.kinds[no[i]].renewedAgain)
		b.answer(no[i], res, err)
	}
}

// runBatch carries out scripts in one pipeline, and in another those that the server did not know.
func (s *session) runBatch(ctx context.Context, calls []Call) []Reply {
	return runAll(calls, func(cmds []Command) []Reply { return s.Transport.SendBatch(ctx, cmds) })
}

// runAll is runBatch by a way of one's own.
func runAll(calls []Call, send func([]Command) []Reply) []Reply {
	if len(calls) == 0 {
		return nil
	}
	cmds := make([]Command, len(calls))
	for i, call := range calls {
		cmds[i] = call.bySHA()
	}
	replies := send(cmds)
	var unknown []int
	cmds = cmds[:0]
	for i, r := range replies {
		if r.unknownScript() {
			unknown = append(unknown, i)
			cmds = append(cmds, calls[i].byText())
		}
	}
	if len(unknown) == 0 {
		return replies
	}
	for i, r := range send(cmds) {
		replies[unknown[i]] = r
	}
	return replies
}

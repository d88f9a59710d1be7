package redisson

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

const (
	// maxBatch is the maximum number of renewals in one pipeline. It bounds a server's buffers, and
	// how long other commands wait behind a batch.
	maxBatch = 1000

	// maxScripts is the maximum number of scripts in one pipeline if each renews many holds.
	maxScripts = 100

	// maxTogether is the maximum number of holds that one script renews. A hold of several permits
	// counts once for each permit. The limit bounds how long a script keeps the server from other
	// work.
	maxTogether = 100
)

// A batch is the state of one call of RenewBatch.
type batch struct {
	*session
	// reqs is a copy of the requests. choose replaces the names and owners in it with those used in
	// the store.
	reqs   []backend.RenewRequest
	kinds  []*kind // the kind of each request
	answer func(int, backend.RenewResult, error)
}

// RenewBatch sends the requests in pipelines, one for each node of a cluster. It splits the
// requests itself, since the client libraries would return only after the slowest node's answer. If
// there is only one server, most requests share scripts.
func (s *session) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	b := &batch{s, slices.Clone(reqs), make([]*kind, len(reqs)), answer}
	chosen := b.choose(ctx)
	if !s.Cluster && len(chosen) > 1 {
		chosen = b.together(ctx, chosen)
	}
	var running sync.WaitGroup
	name := func(i int) string { return b.reqs[i].Name }
	for _, group := range b.byNode(ctx, chosen, name, func(i int, err error) {
		b.answer(i, backend.RenewResult{}, err)
	}) {
		running.Go(func() {
			for some := range slices.Chunk(group, maxBatch) {
				b.apart(ctx, some)
			}
		})
	}
	if s.Cluster {
		// Refresh runs concurrently with the batches, since it may wait for a node that hangs.
		s.Transport.Refresh(ctx)
	}
	running.Wait()
}

// choose returns the indexes of the requests that can be sent, and replaces their names and owners
// with those used in the store. It answers the other requests with an error.
func (b *batch) choose(ctx context.Context) (chosen []int) {
	var down error // if there is a single server, the reason why it can't be reached, or nil
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
		b.latest.lasts(req.Name, time.Now().Add(req.Lease))
		chosen = append(chosen, i)
	}
	return chosen
}

// byNode groups requests by their node. If the node of a request can't be determined, byNode calls
// the function fail for that request.
func (s *session) byNode(
	ctx context.Context, chosen []int, name func(int) string, fail func(int, error),
) map[string][]int {
	groups := make(map[string][]int)
	for _, i := range chosen {
		var node string // "" if there is only one server
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

// together renews many holds with few scripts, on a single server. It returns the requests that
// must still be sent one at a time.
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

// alike groups the chosen requests so that a single script can carry out each group.
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

// answerTogether answers those requests of a group whose holds were renewed. It returns the other
// requests, which must be sent one at a time. If there was no reply, it answers all requests with
// the error.
//
// A reply that a hold was renewed is reliable. A reply that a hold wasn't renewed can be wrong: a
// proxy sends the whole script to the server that stores the first name, even if other names are
// stored elsewhere. An error reply concerns only one of the names, and doesn't say which.
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

// apart renews each hold with its own script. If a script finds no hold, apart repeats the renewal
// with the kind's renewAgain, unless that is nil.
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

// runBatch runs scripts in one pipeline. If the server doesn't know some of them, runBatch sends
// these again in another pipeline.
func (s *session) runBatch(ctx context.Context, calls []Call) []Reply {
	return runAll(calls, func(cmds []Command) []Reply { return s.Transport.SendBatch(ctx, cmds) })
}

// runAll is like runBatch, but sends the commands with the given function.
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

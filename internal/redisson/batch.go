package redisson

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// maxSteps is the maximum number of steps in one pipeline. It is small, since callers wait for the
// whole pipeline.
const maxSteps = 100

// AcquireBatch sends the same scripts as Acquire. Scripts for the same node are sent together, and
// several plain locks with the same hash tag share a script.
func (s *session) AcquireBatch(
	ctx context.Context, reqs []backend.AcquireRequest, answer func(
		int, backend.AcquireResult, error,
	),
) {
	b := &acquires{s, slices.Clone(reqs), make([]*kind, len(reqs)), answer}
	var chosen []int
	var apart sync.WaitGroup
	defer apart.Wait()
	for i := range b.reqs {
		req := &b.reqs[i]
		if s.Replicas.N > 0 || req.Reentry || req.Place > 0 { // it may need more than one command
			apart.Go(func() {
				res, err := s.Acquire(ctx, *req)
				answer(i, res, err)
			})
			continue
		}
		req.Name = s.Prefix + req.Name
		k, err := s.check(ctx, req.Kind, req.Name, req.Owner)
		if err == nil {
			err = s.probe(ctx)
		}
		if err != nil {
			b.fail(i, err)
			continue
		}
		b.kinds[i], req.Owner = k, k.called(req.Owner)
		chosen = append(chosen, i)
	}
	s.atNodes(ctx, chosen, func(i int) string { return b.reqs[i].Name }, b.fail,
		func(group []int) { b.send(ctx, group) })
}

// acquires is the state of one call of AcquireBatch.
type acquires struct {
	*session
	reqs   []backend.AcquireRequest // a copy that belongs to the batch
	kinds  []*kind                  // the kind of each request
	answer func(int, backend.AcquireResult, error)
}

func (b *acquires) fail(i int, err error) { b.answer(i, backend.AcquireResult{}, err) }

// send sends the attempts of a group together. If an attempt is refused, and its key might not be a
// lock, send checks the key. These checks are also sent together.
func (b *acquires) send(ctx context.Context, group []int) {
	group = slices.DeleteFunc(slices.Clone(group), func(index int) bool {
		err := b.denied.take(b.kinds[index])
		if err != nil {
			b.fail(index, err)
		}
		return err != nil
	})
	calls := make([]Call, len(group))
	for i, index := range group {
		k, req := b.kinds[index], b.reqs[index]
		if k.untold {
			b.strangers.asks(req.Owner)
		}
		calls[i] = k.acquire(b.Dialect, req)
	}
	sent := time.Now()
	var doubtful []int
	refused := make(map[int]backend.AcquireResult)
	for i, r := range b.runTogether(ctx, calls) {
		index := group[i]
		k, req := b.kinds[index], b.reqs[index]
		b.denied.note(k, r.Err)
		res, err := parse(r, k.acquired)
		switch {
		case k.line:
			b.triedInLine(ctx, req, sent, r)
		case err == nil && b.noted(k, req, sent, res):
			doubtful, refused[index] = append(doubtful, index), res
			continue
		}
		b.answer(index, res, err)
	}
	calls = calls[:0]
	for _, index := range doubtful {
		calls = append(calls, IsForeign(b.reqs[index].Name))
	}
	for i, r := range b.runTogether(ctx, calls) {
		b.answer(doubtful[i], refused[doubtful[i]], foundForeign(r))
	}
}

// triedInLine records the answer to an attempt to acquire a fair lock without waiting in line.
func (s *session) triedInLine(
	ctx context.Context, req backend.AcquireRequest, sent time.Time, r Reply,
) {
	s.latest.isNot(req.Name)
	turn, err := parse(r, ParseTurn)
	switch {
	case err != nil:
		s.turns.failed(ctx, req.Name, err)
	case turn.Acquired:
		s.turns.over(req.Name, req.Owner)
	default:
		s.turns.saw(req.Name, observation{sent, turn.At})
	}
}

// ReleaseBatch sends the same scripts as Release. Scripts for the same node are sent together.
func (s *session) ReleaseBatch(
	ctx context.Context, reqs []backend.ReleaseRequest, answer func(
		int, backend.ReleaseResult, error,
	),
) {
	b := &releases{s, slices.Clone(reqs), make([]*kind, len(reqs)), answer}
	var chosen []int
	var apart sync.WaitGroup
	defer apart.Wait()
	for i := range b.reqs {
		req := &b.reqs[i]
		if req.Keep > 0 { // releases.send can't keep a lock taken
			apart.Go(func() {
				res, err := s.Release(ctx, *req)
				answer(i, res, err)
			})
			continue
		}
		req.Name = s.Prefix + req.Name
		k, err := s.check(ctx, req.Kind, req.Name, req.Owner)
		if err != nil {
			b.fail(i, err)
			continue
		}
		b.kinds[i], req.Owner = k, k.called(req.Owner)
		chosen = append(chosen, i)
	}
	s.atNodes(ctx, chosen, func(i int) string { return b.reqs[i].Name }, b.fail,
		func(group []int) { b.send(ctx, group) })
}

// releases is the state of one call of ReleaseBatch.
type releases struct {
	*session
	reqs   []backend.ReleaseRequest // a copy that belongs to the batch
	kinds  []*kind                  // the kind of each request
	answer func(int, backend.ReleaseResult, error)
}

func (b *releases) fail(i int, err error) { b.answer(i, backend.ReleaseResult{}, err) }

// send sends the releases of a group together. It also counts the waiting clients, for the requests
// that ask for this. Then it repeats the releases whose owners might still hold the lock, again
// together.
func (b *releases) send(ctx context.Context, group []int) {
	calls := make([]Call, len(group))
	questions := make(map[int]Command) // commands that follow a script
	counts := make(map[int]func() (least, most int))
	for i, index := range group {
		k, req := b.kinds[index], b.reqs[index]
		b.latest.isNot(req.Name)
		b.turns.over(req.Name, req.Owner)
		calls[i] = k.release(b.Dialect, req)
		if req.AskWaiting && !k.line {
			channel := k.channel(req.Name)
			counts[i], questions[i] = b.Subscriber.Watch(channel),
				b.Dialect.countWaiting(channel, b.Cluster)
		}
	}
	var again []int
	replies, answers := b.runAsking(ctx, calls, questions)
	for i, index := range group {
		k := b.kinds[index]
		if _, ok := k.mute(b.reqs[index].Name, calls[i]); ok && replies[i].deniedKeys() {
			replies[i] = b.runRelease(ctx, k, b.reqs[index].Name, calls[i])
		}
		res, err := parse(replies[i], k.released)
		if own := counts[i]; own != nil {
			least, most := own()
			if asked, ok := answers[i]; ok && err == nil && res.Outcome == backend.Freed {
				b.Dialect.AddWaiting(&res, asked.Value, asked.Err, b.Cluster, least, most)
				res.Strangers = b.strangers.among(res.Waiting, b.reqs[index].Name)
			}
		}
		if k.releaseAgain != nil && MayHold(res, err) {
			again = append(again, index)
			continue
		}
		b.answer(index, res, err)
	}
	calls = calls[:0]
	for _, index := range again {
		calls = append(calls, b.kinds[index].releaseAgain(b.Dialect, b.reqs[index]))
	}
	for i, r := range b.runTogether(ctx, calls) {
		res, err := parse(r, b.kinds[again[i]].releasedAgain)
		b.answer(again[i], res, err)
	}
}

// atNodes puts requests, given by their indexes, into groups. Each group contains the requests for
// locks on one cluster node. Without a cluster there is only one group. atNodes handles all groups
// concurrently, and calls send for up to maxSteps requests of a group at a time. If no node is
// known for a request, or its node can't be reached, atNodes calls fail for that request instead.
func (s *session) atNodes(
	ctx context.Context, chosen []int, name func(int) string, fail func(int, error),
	send func(group []int),
) {
	var running sync.WaitGroup
	defer running.Wait()
	groups := s.byNode(ctx, chosen, name, fail)
	for _, group := range groups {
		inOrder := func() {
			for some := range slices.Chunk(group, maxSteps) {
				if err := s.Transport.Reach(ctx, name(some[0])); err != nil {
					for _, i := range some {
						fail(i, err)
					}
					continue
				}
				send(some)
			}
		}
		if len(groups) == 1 {
			inOrder()
		} else {
			running.Go(inOrder)
		}
	}
}

// runTogether runs scripts in one pipeline. If a script has more to do, runTogether repeats it.
func (s *session) runTogether(ctx context.Context, calls []Call) []Reply {
	replies, _ := s.runAsking(ctx, calls, nil)
	return replies
}

// finish repeats the scripts that have more to do, one after another.
func (s *session) finish(ctx context.Context, calls []Call, replies []Reply) []Reply {
	for i, r := range replies {
		if r.Value == more {
			replies[i] = s.run(ctx, calls[i])
		}
	}
	return replies
}

// runAsking is like runTogether, but after some of the scripts it sends a second command, called a
// question. If the server refuses a script that handles several locks, runAsking sends one script
// for each of these locks.
func (s *session) runAsking(
	ctx context.Context, calls []Call, questions map[int]Command,
) (replies []Reply, answers map[int]Reply) {
	send := func(cmds []Command) []Reply { return s.Transport.SendTogether(ctx, cmds...) }
	joint, firsts := joinSteps(calls, questions)
	behind := make(map[int]Command)
	for i, first := range firsts {
		if q, ok := questions[first]; ok {
			behind[i] = q
		}
	}
	all, heard := s.sendAsking(ctx, joint, behind)
	replies, answers = make([]Reply, 0, len(calls)), make(map[int]Reply)
	var refused []int
	var again []Call
	for i, r := range all {
		first := len(replies)
		if a, ok := heard[i]; ok {
			answers[first] = a
		}
		next := len(calls)
		if i+1 < len(firsts) {
			next = firsts[i+1]
		}
		if next-first == 1 {
			replies = append(replies, r)
			continue
		}
		replies = append(replies, r.each(next-first)...)
		if r.refusedBefore() {
			for k := first; k < next; k++ {
				refused, again = append(refused, k), append(again, calls[k])
			}
		}
	}
	for i, r := range runAll(again, send) {
		replies[refused[i]] = r
	}
	return s.finish(ctx, calls, replies), answers
}

// sendAsking sends scripts, some of them followed by a question. If the server didn't know a
// script, the answer to the question after it is meaningless, and sendAsking drops that answer.
func (s *session) sendAsking(
	ctx context.Context, calls []Call, questions map[int]Command,
) (replies []Reply, answers map[int]Reply) {
	first := true
	answers = make(map[int]Reply)
	replies = runAll(calls, func(cmds []Command) []Reply {
		if !first || len(questions) == 0 {
			return s.Transport.SendTogether(ctx, cmds...)
		}
		first = false
		var all []Command
		for i, cmd := range cmds {
			if all = append(all, cmd); questions[i].Verb != "" {
				all = append(all, questions[i])
			}
		}
		got := s.Transport.SendTogether(ctx, all...)
		scripts := make([]Reply, len(cmds))
		for i := range cmds {
			scripts[i], got = got[0], got[1:]
			if questions[i].Verb != "" {
				if !scripts[i].unknownScript() {
					answers[i] = got[0]
				}
				got = got[1:]
			}
		}
		return scripts
	})
	return replies, answers
}

package steps

import (
	"context"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// An Answer is the result or the error of one step in a batch.
type Answer[Res any] struct {
	Res Res
	Err error
	in  bool // the answer came before the caller stopped waiting
}

// A Reader contains the functions that [Together] calls. All of them except Context may be nil.
type Reader[Res any] struct {
	Context func(i int) context.Context     // the context of a step, for Observe
	Heard   func(res Res, err error)        // called for each answer that comes in time
	Late    func(i int, res Res, err error) // called for each answer that comes later
}

// Together carries out several steps in one batch, and returns their answers. It stops waiting
// under the same conditions as Do. The outcome of an unanswered step is unknown.
func Together[Req, Res any](
	ctx context.Context, s *Store,
	do func(backend.Batcher, context.Context, []Req, func(int, Res, error)), reqs []Req,
	reader Reader[Res],
) []Answer[Res] {
	all := make([]Answer[Res], len(reqs))
	if err := s.begin(); err != nil {
		for i := range all {
			all[i].Err = err
		}
		return all
	}
	for i := range all {
		all[i].Err = ErrUnanswered
	}
	ctx, stop := s.bounded(ctx, s.patience.d)
	defer stop()
	began := time.Now()
	observe := func(i int, err error) {
		if s.Observe != nil {
			s.Observe(reader.Context(i), reqs[i], time.Since(began), err)
		}
	}
	var mu sync.Mutex
	left := false
	answer := func(i int, res Res, err error) {
		err = unanswered(ctx, err)
		mu.Lock()
		late := left
		if !late {
			all[i] = Answer[Res]{res, err, true}
		}
		mu.Unlock()
		switch {
		case !late:
			if reader.Heard != nil {
				reader.Heard(res, err)
			}
			observe(i, err)
		case reader.Late != nil:
			reader.Late(i, res, err)
		}
	}
	if s.Steps == backend.StepsReturn {
		defer s.running.Done()
		do(s.Batcher, ctx, reqs, answer)
		return all
	}
	done := make(chan struct{})
	go func() {
		defer s.running.Done()
		defer close(done)
		do(s.Batcher, ctx, reqs, answer)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	mu.Lock()
	left = true
	mu.Unlock()
	for i, a := range all {
		if !a.in {
			observe(i, a.Err)
		}
	}
	return all
}

// Renew renews several leases, in one batch if the store supports batches. It calls answer once for
// each request, perhaps from several goroutines. It returns when all requests have been answered.
func (s *Store) Renew(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	began := time.Now()
	if s.BatchRenewer == nil {
		var all sync.WaitGroup
		for i, req := range reqs {
			all.Go(func() {
				res, err := s.Session.Renew(ctx, req)
				if s.Observe != nil {
					s.Observe(ctx, req, time.Since(began), err)
				}
				answer(i, res, err)
			})
		}
		all.Wait()
		return
	}
	if s.Observe == nil {
		s.BatchRenewer.RenewBatch(ctx, reqs, answer)
		return
	}
	var mu sync.Mutex
	var first error
	s.BatchRenewer.RenewBatch(ctx, reqs, func(i int, res backend.RenewResult, err error) {
		mu.Lock()
		if first == nil {
			first = err
		}
		mu.Unlock()
		answer(i, res, err)
	})
	s.Observe(ctx, reqs, time.Since(began), first)
}

package steps_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock/internal/steps"
)

// fake is a store whose steps take a while, whatever becomes of their contexts, unless they return.
type fake struct {
	backend.Session
	steps backend.Steps
	takes time.Duration
	alone bool // it has no batches
}

func (f *fake) Open() backend.Session  { return f }
func (f *fake) Limits() backend.Limits { return backend.Limits{} }
func (f *fake) String() string         { return "a fake" }
func (f *fake) Capabilities() (c backend.Capabilities) {
	c.Steps = f.steps
	if !f.alone {
		c.BatchRenewer, c.Batcher = f, f
	}
	return c
}

func (f *fake) wait(ctx context.Context) error {
	if f.steps != backend.StepsReturn {
		time.Sleep(f.takes)
		return nil
	}
	select {
	case <-time.After(f.takes):
		return nil
	case <-ctx.Done():
		return &backend.Error{Kind: backend.Unknown, Err: ctx.Err()}
	}
}

func (f *fake) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if err := f.wait(ctx); err != nil {
		return backend.AcquireResult{}, err
	}
	return backend.AcquireResult{Acquired: true}, nil
}

func (f *fake) Renew(context.Context, backend.RenewRequest) (backend.RenewResult, error) {
	return backend.RenewResult{Held: true}, nil
}

func (f *fake) RenewBatch(
	ctx context.Context, reqs []backend.RenewRequest, answer func(int, backend.RenewResult, error),
) {
	for i := range reqs {
		answer(i, backend.RenewResult{Held: true}, nil)
	}
}

// AcquireBatch answers the requests one after the other.
func (f *fake) AcquireBatch(
	ctx context.Context, reqs []backend.AcquireRequest,
	answer func(int, backend.AcquireResult, error),
) {
	for i := range reqs {
		res, err := f.Acquire(ctx, reqs[i])
		answer(i, res, err)
	}
}

func (f *fake) ReleaseBatch(
	context.Context, []backend.ReleaseRequest, func(int, backend.ReleaseResult, error),
) {
	panic("not used")
}

const lease = 10 * time.Second

var errOver = errors.New("over")

func acquire(ctx context.Context, s *steps.Store) (backend.AcquireResult, error) {
	return steps.Do(ctx, s, backend.Session.Acquire, backend.AcquireRequest{})
}

// A caller leaves a step that hangs when its context ends, when its patience is over, or when End
// is called. The answer isn't lost.
func TestLeave(t *testing.T) {
	for _, how := range []backend.Steps{0, backend.StepsReturn} {
		for name, c := range map[string]struct {
			ends, patience, end, want time.Duration
		}{
			"context":              {2 * time.Second, lease, time.Hour, 2 * time.Second},
			"patience":             {time.Hour, 3 * time.Second, time.Hour, 3 * time.Second},
			"end":                  {time.Hour, lease, 4 * time.Second, 4 * time.Second},
			"end with no patience": {time.Hour, 0, 4 * time.Second, 4 * time.Second},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := steps.Open(&fake{steps: how, takes: time.Minute}, lease)
					ctx, cancel := context.WithTimeout(t.Context(), c.ends)
					defer cancel()
					end := time.AfterFunc(c.end, func() { s.End(errOver) })
					defer end.Stop()
					began := time.Now()
					late := 0
					res, err := steps.DoWithin(ctx, s, c.patience, func(
						res backend.AcquireResult, err error,
					) {
						if late++; !res.Acquired || err != nil {
							t.Errorf("late: %+v, %v", res, err)
						}
					}, backend.Session.Acquire, backend.AcquireRequest{})
					if res.Acquired || !errors.Is(err, steps.ErrUnanswered) ||
						backend.KindOf(err) != backend.Unknown {
						t.Errorf("%+v, %v", res, err)
					}
					if took := time.Since(began); took != c.want {
						t.Errorf("the caller left after %v, not %v", took, c.want)
					}
					s.End(errOver)
					s.Wait()
					if wanted := how != backend.StepsReturn; (late == 1) != wanted {
						t.Errorf("%d late answers", late)
					}
				})
			})
		}
	}
}

// A caller whose context can't end shares the context of its step with others, but not for long.
func TestSharedPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := steps.Open(&fake{takes: time.Minute}, lease)
		defer s.Wait()
		defer s.End(errOver)
		p := s.Patience(lease)
		first := p.Context()
		time.Sleep(lease / 8)
		if p.Context() != first {
			t.Error("calls soon after one another have contexts of their own")
		}
		time.Sleep(time.Millisecond)
		if p.Context() == first {
			t.Error("a call gets a context that ends much too early")
		}
		began := time.Now()
		_, err := steps.DoWithin(context.Background(), s, 2*time.Second, nil,
			backend.Session.Acquire, backend.AcquireRequest{})
		if took := time.Since(began); err != steps.ErrUnanswered || took != 2*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		began = time.Now()
		for range 2 {
			_, err := acquire(context.Background(), s)
			if took := time.Since(began); err != steps.ErrUnanswered || took > 2*lease {
				t.Errorf("%v after %v", err, took)
			}
		}
	})
}

// After the end, only Last reaches the store.
func TestEnd(t *testing.T) {
	for _, how := range []backend.Steps{0, backend.StepsReturn} {
		synctest.Test(t, func(t *testing.T) {
			s := steps.Open(&fake{steps: how}, lease)
			s.Go(func() { <-s.Context().Done() })
			s.End(errOver)
			s.Wait()
			s.Go(func() { t.Error("a goroutine after the end") })
			if _, err := acquire(t.Context(), s); !errors.Is(err, errOver) ||
				backend.KindOf(err) != backend.Retry {
				t.Errorf("a step after the end: %v", err)
			}
			for _, a := range steps.Together(t.Context(), s, backend.Batcher.AcquireBatch,
				make([]backend.AcquireRequest, 2), steps.Reader[backend.AcquireResult]{}) {
				if !errors.Is(a.Err, errOver) {
					t.Errorf("a batch after the end: %v", a.Err)
				}
			}
			res, err := steps.Last(t.Context(), s, backend.Session.Acquire,
				backend.AcquireRequest{})
			if !res.Acquired || err != nil {
				t.Errorf("the last step: %+v, %v", res, err)
			}
			if s.Pause(t.Context(), time.Hour) {
				t.Error("a pause goes on after the end")
			}
		})
	}
}

// A batch whose caller leaves gives it the answers that have come, and others to Late.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := steps.Open(&fake{takes: time.Second}, lease)
		var observed, heard atomic.Int32
		s.Observe = func(ctx context.Context, _ any, took time.Duration, err error) {
			observed.Add(1)
			if ctx != t.Context() || (err == nil) == (took >= 2500*time.Millisecond) {
				t.Errorf("observed after %v: %v", took, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		var late []int
		all := steps.Together(ctx, s, backend.Batcher.AcquireBatch,
			make([]backend.AcquireRequest, 4), steps.Reader[backend.AcquireResult]{
				Context: func(int) context.Context { return t.Context() },
				Heard:   func(backend.AcquireResult, error) { heard.Add(1) },
				Late: func(i int, res backend.AcquireResult, err error) {
					late = append(late, i)
				},
			})
		for i, a := range all {
			if came := i < 2; a.Res.Acquired != came || (a.Err == steps.ErrUnanswered) == came {
				t.Errorf("%d: %+v", i, a)
			}
		}
		s.End(errOver)
		s.Wait()
		if heard.Load() != 2 || !slices.Equal(late, []int{2, 3}) || observed.Load() != 4 {
			t.Errorf("%d heard, %v late, %d observed", heard.Load(), late, observed.Load())
		}
	})
}

// Renewals are observed in one piece where the store has batches, else one by one.
func TestRenew(t *testing.T) {
	for alone, want := range map[bool]int{true: 3, false: 1} {
		synctest.Test(t, func(t *testing.T) {
			s := steps.Open(&fake{alone: alone}, lease)
			defer s.End(errOver)
			observed, answers := make(chan any, 10), make(chan int, 10)
			s.Observe = func(_ context.Context, req any, _ time.Duration, err error) {
				observed <- req
			}
			s.Renew(t.Context(), make([]backend.RenewRequest, 3),
				func(i int, res backend.RenewResult, err error) {
					if !res.Held || err != nil {
						t.Errorf("%d: %+v, %v", i, res, err)
					}
					answers <- i
				})
			if len(answers) != 3 || len(observed) != want {
				t.Errorf("%d answers, %d observed", len(answers), len(observed))
			}
		})
	}
}

package recipes

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

var errNoPaper = errors.New("out of paper")

// A printer makes reports, in a second each, but for those that fail.
type printer struct{ begun, made, fails atomic.Int32 }

func (p *printer) print(ctx context.Context) error {
	p.begun.Add(1)
	time.Sleep(time.Second)
	if p.fails.Add(-1) >= 0 {
		return errNoPaper
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.made.Add(1)
	return nil
}

type reporter func(
	ctx context.Context, client *dlock.Client, day string, report func(context.Context) error,
) error

// reportOnceSilently is reportOnce without a log.
func reportOnceSilently(
	ctx context.Context, client *dlock.Client, day string, report func(context.Context) error,
) error {
	return reportOnce(ctx, client, slog.New(slog.DiscardHandler), day, report)
}

// onADay has three replicas, whose clocks are so far apart, make the report of a day.
func onADay(t *testing.T, p *printer, apart time.Duration, make reporter) (errs []error) {
	store := membackend.New()
	errs = []error{0: nil, 1: nil, 2: nil}
	var all sync.WaitGroup
	for i := range errs {
		client := replicaOn(t, store)
		all.Go(func() {
			time.Sleep(time.Duration(i) * apart)
			errs[i] = make(t.Context(), client, "2026-11-22", p.print)
		})
	}
	all.Wait()
	return errs
}

func TestAJobUnderALockIsDoneByEachReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p printer
		onADay(t, &p, 20*time.Millisecond, reportWrong)
		if n := p.made.Load(); n != 3 {
			t.Errorf("three replicas made %d reports", n)
		}
	})
}

func TestAtLeastIsAtMostOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p printer
		errs := onADay(t, &p, 20*time.Millisecond, reportAtMost)
		if n := p.made.Load(); n != 1 || errs[0] != nil || !errors.Is(errs[1], dlock.ErrHeld) ||
			!errors.Is(errs[2], dlock.ErrHeld) {
			t.Errorf("three replicas made %d reports, and say %v", n, errs)
		}
	})
}

func TestWithAtLeastAReportThatFailsIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p printer
		p.fails.Store(1)
		onADay(t, &p, 10*time.Minute, reportAtMost)
		if n := p.made.Load(); n != 0 {
			t.Errorf("the first failed, and others, who came ten minutes later, made %d reports", n)
		}
	})
}

func TestOnceIsOnce(t *testing.T) {
	for _, apart := range []time.Duration{0, 20 * time.Millisecond, 10 * time.Minute} {
		for _, fails := range []int32{0, 1, 5} {
			synctest.Test(t, func(t *testing.T) {
				var p printer
				p.fails.Store(fails)
				errs := onADay(t, &p, apart, reportOnceSilently)
				if n := p.made.Load(); n != 1 || errors.Join(errs...) != nil {
					t.Errorf("replicas %v apart, of whose attempts %d fail, made %d reports, "+
						"and say %v", apart, fails, n, errs)
				}
			})
		}
	}
}

func TestOnceIsDoneByAnotherIfAReplicaDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		dying := &line{Backend: store}
		first, second := replicaOn(t, dying), replicaOn(t, store)
		var p printer
		grave := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			reportOnceSilently(t.Context(), first, "2026-11-22", func(context.Context) error {
				dying.down.Store(true) // the machine fails
				<-grave
				return errNoPaper
			})
		})
		synctest.Wait()
		must(t, reportOnceSilently(t.Context(), second, "2026-11-22", p.print))
		if n := p.made.Load(); n != 1 {
			t.Errorf("one of two replicas died, and the other made %d reports", n)
		}
		close(grave)
		dying.down.Store(false) // it comes back, as if it had never been away
		all.Wait()
		if n := p.made.Load(); n != 1 {
			t.Errorf("one of two replicas died and came back, and they made %d reports", n)
		}
	})
}

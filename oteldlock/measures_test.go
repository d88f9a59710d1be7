package oteldlock_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/oteldlock"
)

func TestALockAndItsUnlock(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		lk := l.c.Locker("x")
		must(t, lk.LockContext(t.Context()))
		time.Sleep(3 * time.Second)
		l.want(t,
			"distsync.acquisitions{kind=exclusive outcome=acquired via=store} 1",
			"distsync.wait.duration{kind=exclusive outcome=acquired via=store} 1 0s",
			"distsync.held{kind=exclusive} 1")
		must(t, lk.UnlockContext(t.Context()))
		l.want(t, "distsync.hold.duration{kind=exclusive outcome=released} 1 3s")
	})
}

// Waits are measured with their duration, whatever their outcome.
func TestWaiting(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		must(t, l.other.Locker("x").LockContext(t.Context()))
		ctx, cancel := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if ok, err := l.c.Locker("x").TryLock(t.Context(), dlock.Wait(time.Second)); ok ||
				err != nil {
				t.Errorf("%v, %v; want neither", ok, err)
			}
		})
		all.Go(func() {
			if err := l.c.Locker("x").LockContext(ctx); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		l.want(t, "distsync.waiting{kind=exclusive} 2")
		time.Sleep(2 * time.Second)
		cancel(errors.New("enough"))
		all.Wait()
		l.want(t,
			"distsync.acquisitions{kind=exclusive outcome=timeout} 1",
			"distsync.wait.duration{kind=exclusive outcome=timeout} 1 1s",
			"distsync.acquisitions{kind=exclusive outcome=canceled} 1",
			"distsync.wait.duration{kind=exclusive outcome=canceled} 1 2s")
	})
}

// A re-entry, and giving it back, are no hold of their own.
func TestReentry(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		must(t, l.c.Locker("x").Do(t.Context(), func(ctx context.Context) error {
			return l.c.Locker("x").Do(ctx, func(context.Context) error {
				time.Sleep(time.Second)
				l.want(t,
					"distsync.acquisitions{kind=exclusive outcome=acquired via=store} 1",
					"distsync.wait.duration{kind=exclusive outcome=acquired via=store} 1 0s",
					"distsync.acquisitions{kind=exclusive outcome=acquired via=reentry} 1",
					"distsync.wait.duration{kind=exclusive outcome=acquired via=reentry} 1 0s",
					"distsync.held{kind=exclusive} 1")
				return nil
			})
		}))
		l.want(t, "distsync.hold.duration{kind=exclusive outcome=released} 1 1s")
	})
}

// A lock that passes from one to another inside the client is held by one after the other.
func TestHandover(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		first, second := l.c.Locker("x"), l.c.Locker("x")
		must(t, first.LockContext(t.Context()))
		entered := make(chan error)
		go func() { entered <- second.LockContext(t.Context()) }()
		synctest.Wait()
		time.Sleep(time.Millisecond)
		must(t, first.UnlockContext(t.Context()))
		must(t, <-entered)
		l.want(t,
			"distsync.acquisitions{kind=exclusive outcome=acquired via=store} 1",
			"distsync.wait.duration{kind=exclusive outcome=acquired via=store} 1 0s",
			"distsync.hold.duration{kind=exclusive outcome=handover} 1 0.001s",
			"distsync.acquisitions{kind=exclusive outcome=acquired via=handover} 1",
			"distsync.wait.duration{kind=exclusive outcome=acquired via=handover} 1 0.001s",
			"distsync.held{kind=exclusive} 1")
		time.Sleep(2 * time.Second)
		must(t, second.UnlockContext(t.Context()))
		l.want(t, "distsync.hold.duration{kind=exclusive outcome=released} 1 2s")
	})
}

// Each kind of lock is named, and counted by itself.
func TestKinds(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		ctx := t.Context()
		var holds []*dlock.Hold
		hold := func(h *dlock.Hold, err error) {
			t.Helper()
			must(t, err)
			holds = append(holds, h)
		}
		hold(l.c.FencedLocker("fenced").Acquire(ctx))
		hold(l.c.FairLocker("fair").Acquire(ctx))
		hold(l.c.Semaphore("permits", 5).Acquire(ctx, 3))
		hold(l.c.RWLocker("one").Writer().Acquire(ctx))
		hold(l.c.RWLocker("another").Reader().Acquire(ctx))
		hold(l.c.RWLocker("another").Reader().Acquire(ctx))
		levels := []string{"distsync.held"}
		l.wantOf(t, levels,
			"distsync.held{kind=fenced} 1",
			"distsync.held{kind=fair} 1",
			"distsync.held{kind=permits} 1", // the three of one Acquire
			"distsync.held{kind=write} 1",
			"distsync.held{kind=read} 2")
		granted := make(chan *dlock.Hold)
		go func() {
			h, err := l.c.FairLocker("fair").Acquire(ctx)
			if err != nil {
				t.Error(err)
			}
			granted <- h
		}()
		synctest.Wait()
		for _, h := range holds {
			must(t, h.Release(ctx))
		}
		must(t, (<-granted).Release(ctx))
		l.wantOf(t, []string{"distsync.held", "distsync.acquisitions"},
			"distsync.acquisitions{kind=fair outcome=acquired via=granted} 1")
	})
}

// Readers that read together came by different ways.
func TestReaders(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		a, err := l.c.RWLocker("x").Reader().Acquire(t.Context())
		must(t, err)
		b, err := l.c.RWLocker("x").Reader().Acquire(t.Context())
		must(t, err)
		must(t, a.Release(t.Context()))
		time.Sleep(time.Second)
		must(t, b.Release(t.Context()))
		l.want(t,
			"distsync.acquisitions{kind=read outcome=acquired via=store} 1",
			"distsync.wait.duration{kind=read outcome=acquired via=store} 1 0s",
			"distsync.acquisitions{kind=read outcome=acquired via=joined} 1",
			"distsync.wait.duration{kind=read outcome=acquired via=joined} 1 0s",
			"distsync.hold.duration{kind=read outcome=released} 2 1s")
	})
}

// A lock that is lost in any way counts once as no longer held, and its hold is measured.
func TestLosses(t *testing.T) {
	for _, lose := range []struct {
		reason dlock.LossReason
		after  time.Duration
		how    func(t *testing.T, l *lab)
		opts   []dlock.AcquireOption
	}{
		{reason: dlock.LossForced, how: func(t *testing.T, l *lab) { force(t, l.c) }},
		{reason: dlock.LossGone, after: 10 * time.Second, how: func(t *testing.T, l *lab) {
			force(t, l.other)
		}},
		{reason: dlock.LossTaken, after: 10 * time.Second, how: func(t *testing.T, l *lab) {
			force(t, l.other)
			must(t, l.other.Locker("x").LockContext(t.Context()))
		}},
		{reason: dlock.LossExpired, after: 30 * time.Second, how: func(t *testing.T, l *lab) {
			l.store.breakWith(errDown)
		}},
		{reason: dlock.LossLease, after: 5 * time.Second, how: func(*testing.T, *lab) {},
			opts: []dlock.AcquireOption{dlock.FixedLease(5 * time.Second)}},
	} {
		t.Run(lose.reason.String(), func(t *testing.T) {
			observed(t, func(t *testing.T, l *lab) {
				lk := l.c.Locker("x")
				must(t, lk.LockContext(t.Context(), lose.opts...))
				lost := lk.Lost(t.Context())
				l.measured(t) // the acquisition
				lose.how(t, l)
				<-lost
				l.wantOf(t, []string{"distsync.losses", "distsync.held"},
					"distsync.losses{kind=exclusive reason="+lose.reason.String()+"} 1")
				if err := lk.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrLost) {
					t.Error(err)
				}
				l.want(t) // it is no more lost, nor given back, than before
			})
		})
	}
}

// Before the first loss the counters of all reasons exist, at 0. Otherwise a query for increases
// would miss the first loss.
func TestLossesBeginAtZero(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		must(t, l.c.FairLocker("x").LockContext(t.Context()))
		reasons := make(map[string]int64)
		var all metricdata.ResourceMetrics
		must(t, l.reader.Collect(t.Context(), &all))
		for _, m := range all.ScopeMetrics[0].Metrics {
			if m.Name != "distsync.losses" {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				reasons[short(p.Attributes.ToSlice())] = p.Value
			}
		}
		want := make(map[string]int64)
		for _, r := range []string{"expired", "gone", "taken", "forced", "paused", "lease"} {
			want["{kind=fair name=all reason="+r+"}"] = 0
		}
		if !maps.Equal(reasons, want) {
			t.Errorf("losses %v, want %v", reasons, want)
		}
	}, oteldlock.WithNameLabel(func(string) string { return "all" }))
}

func force(t *testing.T, c *dlock.Client) {
	t.Helper()
	if ok, err := c.Locker("x").ForceUnlock(t.Context()); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// A hold that is lost was held until it was.
func TestHoldOfALoss(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		lk := l.c.Locker("x")
		must(t, lk.LockContext(t.Context()))
		time.Sleep(4 * time.Second)
		force(t, l.c)
		time.Sleep(time.Second)
		l.wantOf(t, []string{"distsync.hold"},
			"distsync.hold.duration{kind=exclusive outcome=lost} 1 4s")
	})
}

// An unlock that the store doesn't confirm ends a hold all the same.
func TestUnlockThatFails(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		lk := l.c.Locker("x")
		must(t, lk.LockContext(t.Context()))
		l.measured(t)
		l.store.breakWith(errDown)
		if err := lk.UnlockContext(t.Context()); !errors.Is(err, dlock.ErrUnavailable) {
			t.Error(err)
		}
		l.want(t,
			"distsync.hold.duration{kind=exclusive outcome=error error.type=unavailable} 1 0s")
		l.store.mend()
	})
}

// A call without the store's answer counts as an error, also if the caller's own context ended it.
// A call that found the lock held by another doesn't.
func TestErrorTypes(t *testing.T) {
	refused := func(err error) error { return &backend.Error{Kind: backend.Refused, Err: err} }
	for _, c := range []struct {
		name   string
		broken error
		call   func(ctx context.Context, c *dlock.Client) error
		want   string
	}{
		{"refused", refused(errors.New("no permission")), plain,
			"{kind=exclusive outcome=error error.type=unavailable}"},
		{"conflict", refused(backend.ErrConflict), plain,
			"{kind=exclusive outcome=error error.type=conflict}"},
		{"down, within a wait", errDown, func(ctx context.Context, c *dlock.Client) error {
			return c.Locker("x").LockContext(ctx, dlock.Wait(time.Second))
		}, "{kind=exclusive outcome=error error.type=unavailable}"},
		{"down, until a deadline", errDown, func(ctx context.Context, c *dlock.Client) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return plain(ctx, c)
		}, "{kind=exclusive outcome=canceled error.type=unavailable}"},
		{"upgrade", nil, func(ctx context.Context, c *dlock.Client) error {
			ctx = dlock.WithOwner(ctx, dlock.NewOwner())
			rw := c.RWLocker("x")
			if err := rw.Reader().LockContext(ctx); err != nil {
				return err
			}
			defer rw.Reader().UnlockContext(ctx)
			return rw.Writer().LockContext(ctx)
		}, "{kind=write outcome=error error.type=upgrade}"},
		{"no limit", nil, func(ctx context.Context, c *dlock.Client) error {
			_, err := c.Semaphore("x", 0).Acquire(ctx, 1)
			return err
		}, "{kind=permits outcome=error error.type=no_limit}"},
	} {
		t.Run(c.name, func(t *testing.T) {
			observed(t, func(t *testing.T, l *lab) {
				if c.broken != nil {
					l.store.breakWith(c.broken)
				}
				if err := c.call(t.Context(), l.c); err == nil {
					t.Error("it has the lock")
				}
				l.store.mend()
				got := l.measured(t)
				for _, metric := range []string{"distsync.acquisitions", "distsync.wait.duration"} {
					if !slices.ContainsFunc(got, func(line string) bool {
						return strings.HasPrefix(line, metric+c.want+" 1")
					}) {
						t.Errorf("no %s%s among\n%s", metric, c.want, strings.Join(got, "\n"))
					}
				}
			})
		})
	}
}

func plain(ctx context.Context, c *dlock.Client) error { return c.Locker("x").LockContext(ctx) }

// Rounds of renewals count for each lock in them.
func TestRenewals(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		must(t, l.c.Locker("x").LockContext(t.Context()))
		must(t, l.c.FairLocker("y").LockContext(t.Context()))
		time.Sleep(11 * time.Second)
		renewals := []string{"distsync.renewals"}
		l.wantOf(t, renewals, "distsync.renewals{outcome=answered} 2")
		l.store.breakWith(errDown)
		time.Sleep(10 * time.Second)
		l.store.mend()
		got := strings.Join(l.measured(t), "\n")
		if !strings.Contains(got, "distsync.renewals{outcome=error error.type=not_done} ") ||
			strings.Contains(got, "distsync.renewals{outcome=answered}") {
			t.Errorf("while the store was down\n%s\nwant renewals that failed, and no others", got)
		}
	})
}

// All steps are measured, whichever call makes them, and say how they failed.
func TestSteps(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		lk := l.c.Locker("x")
		steps := []string{"distsync.store"}
		must(t, lk.LockContext(t.Context()))
		if _, err := lk.IsHeld(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.c.Inspect(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		force(t, l.c)
		l.wantOf(t, steps,
			"distsync.store.duration{kind=exclusive step=acquire} 1 0s",
			"distsync.store.duration{kind=exclusive step=look} 1 0s",
			"distsync.store.duration{step=inspect} 1 0s",
			"distsync.store.duration{kind=exclusive step=forcerelease} 1 0s")
		lk = l.c.Locker("y")
		must(t, lk.LockContext(t.Context()))
		time.Sleep(11 * time.Second)
		must(t, lk.UnlockContext(t.Context()))
		l.wantOf(t, steps,
			"distsync.store.duration{kind=exclusive step=acquire} 1 0s",
			"distsync.store.duration{step=renew} 1 0s",
			"distsync.store.duration{kind=exclusive step=release} 1 0s")
		for _, broken := range []struct {
			err  error
			want string
		}{
			{&backend.Error{Kind: backend.Unknown, Err: errors.New("timeout")}, "outcome_unknown"},
			{errors.New("anything else"), "outcome_unknown"},
			{errDown, "not_done"},
			{&backend.Error{Kind: backend.Refused, Err: errors.New("no permission")}, "refused"},
			{&backend.Error{Kind: backend.Refused, Err: backend.ErrConflict}, "conflict"},
		} {
			l.store.breakWith(broken.err)
			if _, err := lk.TryLock(t.Context()); err == nil {
				t.Error("it has the lock")
			}
			l.store.mend()
			got := strings.Join(l.measured(t), "\n")
			if want := "distsync.store.duration{kind=exclusive step=acquire error.type=" +
				broken.want + "} 1 0s"; !strings.Contains(got, want) {
				t.Errorf("no %s among\n%s", want, got)
			}
		}
	})
}

// A lock's name is an attribute only as the user says, and only where locks are few: not of the
// store's steps.
func TestNameLabel(t *testing.T) {
	label := oteldlock.WithNameLabel(func(name string) string {
		kind, _, found := strings.Cut(name, ":")
		if !found {
			return ""
		}
		return kind
	})
	observed(t, func(t *testing.T, l *lab) {
		for _, name := range []string{"order:1", "order:2", "report"} {
			must(t, l.c.Locker(name).LockContext(t.Context()))
		}
		force := l.c.Locker("order:1")
		if _, err := force.ForceUnlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := strings.Join(l.measured(t), "\n")
		for _, want := range []string{
			"distsync.acquisitions{kind=exclusive name=order outcome=acquired via=store} 2",
			"distsync.acquisitions{kind=exclusive outcome=acquired via=store} 1",
			"distsync.wait.duration{kind=exclusive name=order outcome=acquired via=store} 2 0s",
			"distsync.losses{kind=exclusive name=order reason=forced} 1",
			"distsync.hold.duration{kind=exclusive name=order outcome=lost} 1 0s",
			"distsync.held{kind=exclusive name=order} 1",
			"distsync.held{kind=exclusive} 1",
			"distsync.store.duration{kind=exclusive step=acquire} 3 0s",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s", want)
			}
		}
		if t.Failed() {
			t.Log(got)
		}
	}, label)
}

// Of labels without bound each is still measured as it is, and levels come back to what they were.
func TestManyLabels(t *testing.T) {
	l := newLab(t, oteldlock.WithNameLabel(func(name string) string { return name }))
	defer l.other.Close()
	defer l.c.Close()
	for i := range 1500 {
		lk := l.c.Locker(string(rune('a'+i%26)) + strings.Repeat("x", i/26))
		must(t, lk.LockContext(t.Context()))
		must(t, lk.UnlockContext(t.Context()))
	}
	acquisitions := 0
	for _, line := range l.measured(t) {
		switch {
		case strings.HasPrefix(line, "distsync.held"), strings.HasPrefix(line, "distsync.waiting"):
			t.Error(line)
		case strings.HasPrefix(line, "distsync.acquisitions"):
			acquisitions++
		}
	}
	if acquisitions != 1500 {
		t.Errorf("%d series of acquisitions, want 1500", acquisitions)
	}
}

func TestAttributes(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		lk := l.c.Locker("x")
		must(t, lk.LockContext(t.Context()))
		l.wantOf(t, []string{"distsync"},
			"distsync.acquisitions{kind=exclusive outcome=acquired via=store store=main} 1",
			"distsync.wait.duration{kind=exclusive outcome=acquired via=store store=main} 1 0s",
			"distsync.store.duration{kind=exclusive step=acquire store=main} 1 0s",
			"distsync.held{kind=exclusive store=main} 1")
		must(t, lk.UnlockContext(t.Context()))
		if attrs := short(l.spans.Ended()[0].Attributes()); !strings.HasPrefix(attrs,
			"{store=main ") {
			t.Error(attrs)
		}
	}, oteldlock.WithAttributes(attribute.String("store", "main"),
		attribute.String("distsync.kind", "mine")))
}

// Units are those that OpenTelemetry asks for, and none is part of a name; boundaries grow.
func TestInstruments(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		must(t, l.c.Locker("x").LockContext(t.Context()))
		time.Sleep(11 * time.Second)
		force(t, l.c)
		synctest.Wait()
		want := map[string]string{
			"distsync.wait.duration": "s", "distsync.hold.duration": "s",
			"distsync.store.duration": "s",
			"distsync.acquisitions":   "{acquisition}", "distsync.losses": "{loss}",
			"distsync.renewals": "{renewal}",
			"distsync.held":     "{lock}", "distsync.waiting": "{waiter}",
		}
		var all metricdata.ResourceMetrics
		must(t, l.reader.Collect(t.Context(), &all))
		scope := all.ScopeMetrics[0]
		if scope.Scope.Name != "github.com/seed951563bd/distsync/oteldlock" {
			t.Error(scope.Scope.Name)
		}
		for _, m := range scope.Metrics {
			if m.Unit != want[m.Name] || m.Description == "" {
				t.Errorf("%s: unit %q, want %q; %q", m.Name, m.Unit, want[m.Name], m.Description)
			}
			delete(want, m.Name)
			h, ok := m.Data.(metricdata.Histogram[float64])
			if !ok {
				continue
			}
			for _, p := range h.DataPoints {
				if !slices.IsSorted(p.Bounds) || p.Bounds[0] > .001 ||
					p.Bounds[len(p.Bounds)-1] < 10 {
					t.Errorf("%s: boundaries %v", m.Name, p.Bounds)
				}
			}
		}
		if len(want) > 0 {
			t.Errorf("not measured: %v", want)
		}
	})
}

// Where nobody wants a metric nothing is done for it.
func TestDroppedMetrics(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	trace, err := oteldlock.New(
		oteldlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader),
			sdkmetric.WithView(sdkmetric.NewView(sdkmetric.Instrument{Name: "*"},
				sdkmetric.Stream{Aggregation: sdkmetric.AggregationDrop{}})))),
		oteldlock.WithTracerProvider(noop.NewTracerProvider()))
	must(t, err)
	c := dlock.New(membackend.New(), dlock.WithTrace(trace))
	defer c.Close()
	lk := c.Locker("x")
	must(t, lk.LockContext(t.Context()))
	must(t, lk.UnlockContext(t.Context()))
	var all metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &all))
	if len(all.ScopeMetrics) > 0 {
		t.Errorf("%+v", all.ScopeMetrics)
	}
}

// Measuring allocates nothing, once it has seen the like.
func TestAllocations(t *testing.T) {
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	trace, err := oteldlock.New(oteldlock.WithMeterProvider(provider),
		oteldlock.WithTracerProvider(noop.NewTracerProvider()))
	must(t, err)
	ctx := t.Context()
	done := dlock.AcquireDone{
		Name: "x", Kind: backend.Fair, HolderID: "a:1", Waited: time.Millisecond,
	}
	released := dlock.ReleaseDone{Name: "x", Kind: backend.Fair, HolderID: "a:1", Held: time.Second}
	step := dlock.StepDone{Op: "acquire", Name: "x", Kind: backend.Fair, Took: time.Millisecond}
	round := dlock.RenewDone{Locks: 3}
	if n := testing.AllocsPerRun(1000, func() {
		trace.StepDone(ctx, step)
		trace.AcquireDone(ctx, done)
		trace.ReleaseDone(ctx, released)
		trace.RenewDone(round)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// At Close the calls that wait end, and so does what is held, once: for this client, though it is
// in the store until its lease ends.
func TestClose(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		lk := l.c.Locker("x")
		must(t, lk.LockContext(t.Context()))
		waited := make(chan error)
		go func() { waited <- l.c.Locker("x").LockContext(t.Context()) }()
		synctest.Wait()
		l.measured(t)
		time.Sleep(time.Second)
		must(t, l.c.Close())
		if err := <-waited; !errors.Is(err, dlock.ErrClosed) {
			t.Error(err)
		}
		l.want(t,
			"distsync.acquisitions{kind=exclusive outcome=error error.type=closed} 1",
			"distsync.wait.duration{kind=exclusive outcome=error error.type=closed} 1 1s",
			"distsync.hold.duration{kind=exclusive outcome=closed} 1 1s")
		must(t, lk.UnlockContext(t.Context()))
		l.want(t)
	})
}

// However calls end, and whatever is lost while they are under way, levels come back to 0.
func TestLevelsBalance(t *testing.T) {
	l := newLab(t)
	defer l.other.Close()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 200 {
				hustle(t.Context(), l.c, i+n)
			}
		})
	}
	all.Wait()
	must(t, l.c.Close())
	for _, line := range l.measured(t) {
		if strings.HasPrefix(line, "distsync.held") || strings.HasPrefix(line, "distsync.waiting") {
			t.Error(line)
		}
	}
}

// hustle takes some lock in some way, and gives it back; now and then it is forced, or nobody waits
// for it for long.
func hustle(ctx context.Context, c *dlock.Client, n int) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(n%7)*100*time.Microsecond+time.Nanosecond)
	defer cancel()
	rw := c.RWLocker("rw")
	lk := []*dlock.Locker{c.Locker("plain"), c.FencedLocker("fenced"), c.FairLocker("fair"),
		rw.Reader(), rw.Reader(), rw.Writer()}[n%6]
	if n%11 == 0 {
		lk.ForceUnlock(ctx)
	}
	if n%5 == 0 {
		if h, err := c.Semaphore("permits", 3).Acquire(ctx, 1+n%2); err == nil {
			defer h.Release(ctx)
		}
	}
	lk.Do(ctx, func(ctx context.Context) error {
		return lk.Do(ctx, func(context.Context) error { return nil })
	})
}

package oteldlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/oteldlock"
)

// ended returns the one span that has ended.
func (l *lab) ended(t *testing.T) sdktrace.ReadOnlySpan {
	t.Helper()
	all := l.spans.Ended()
	if len(all) != 1 || len(l.spans.Started()) != 1 {
		t.Fatalf("%d spans have begun and %d ended, want one", len(l.spans.Started()), len(all))
	}
	l.spans.Reset()
	return all[0]
}

func checkSpan(
	t *testing.T, s sdktrace.ReadOnlySpan, attrs string, status sdktrace.Status, took time.Duration,
) {
	t.Helper()
	if s.Name() != "distsync acquire" || s.SpanKind() != trace.SpanKindInternal {
		t.Errorf("%s, %v", s.Name(), s.SpanKind())
	}
	if got := short(s.Attributes()); got != attrs {
		t.Errorf("attributes %s, want %s", got, attrs)
	}
	if s.Status() != status {
		t.Errorf("status %+v, want %+v", s.Status(), status)
	}
	if got := s.EndTime().Sub(s.StartTime()); got != took {
		t.Errorf("it took %v, want %v", got, took)
	}
}

func checkEvents(t *testing.T, s sdktrace.ReadOnlySpan, events ...string) {
	t.Helper()
	var got []string
	for _, e := range s.Events() {
		got = append(got, e.Name+short(e.Attributes))
	}
	if g, w := strings.Join(got, "\n"), strings.Join(events, "\n"); g != w {
		t.Errorf("events\n%s\nwant\n%s", g, w)
	}
}

var fine = sdktrace.Status{Code: codes.Unset}

// A span has an acquisition's request and outcome, and the store's steps as events. Holds and
// unlocks have no spans.
func TestSpanOfAnAcquisition(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		must(t, l.other.Locker("x").LockContext(t.Context()))
		go func() {
			time.Sleep(2 * time.Second)
			l.other.Locker("x").ForceUnlock(context.Background())
		}()
		h, err := l.c.Locker("x").Acquire(t.Context())
		must(t, err)
		s := l.ended(t)
		checkSpan(t, s, "{name=x kind=exclusive outcome=acquired via=store holder="+h.HolderID()+
			"}", fine, 2*time.Second)
		checkEvents(t, s,
			"distsync.step{step=acquire duration=0}",
			"distsync.step{step=acquire duration=0}", // before it waits, since it has subscribed
			"distsync.step{step=acquire duration=0}")
		must(t, h.Release(t.Context()))
		if n := len(l.spans.Started()); n > 0 {
			t.Errorf("%d more", n)
		}
	})
}

func TestSpanOfPermits(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		h, err := l.c.Semaphore("x", 5).Acquire(t.Context(), 3)
		must(t, err)
		checkSpan(t, l.ended(t),
			"{name=x kind=permits permits=3 outcome=acquired via=store holder="+h.HolderID()+"}",
			fine, 0)
	})
}

// That another has the lock, or that the caller gave up, is no error; that the store couldn't say
// is.
func TestSpanStatus(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		must(t, l.other.Locker("x").LockContext(t.Context()))
		if ok, err := l.c.Locker("x").TryLock(t.Context()); ok || err != nil {
			t.Fatal(ok, err)
		}
		checkSpan(t, l.ended(t), "{name=x kind=exclusive outcome=timeout}", fine, 0)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.c.Locker("x").LockContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		checkSpan(t, l.ended(t), "{name=x kind=exclusive outcome=canceled}", fine, time.Second)

		l.store.breakWith(errDown)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.c.Locker("y").LockContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		s := l.ended(t)
		if s.Status().Code != codes.Error || !strings.Contains(s.Status().Description, "down") {
			t.Errorf("status %+v", s.Status())
		}
		checkSpan(t, s, "{name=y kind=exclusive outcome=canceled error.type=unavailable}",
			s.Status(), time.Second)

		if ok, err := l.c.Locker("y").TryLock(t.Context()); ok || err == nil {
			t.Fatal(ok, err)
		}
		s = l.ended(t)
		checkSpan(t, s, "{name=y kind=exclusive outcome=error error.type=unavailable}", s.Status(),
			0)
		checkEvents(t, s, "distsync.step{step=acquire duration=0 error.type=not_done}")
	})
}

// The span is a child of the caller's, and the calls of the store's client are children of the
// span. The caller's work under the lock is not.
func TestSpanParents(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		tracer := sdktrace.NewTracerProvider().Tracer("test")
		ctx, outer := tracer.Start(t.Context(), "outer")
		var step trace.SpanContext
		l.store.seen = func(ctx context.Context) { step = trace.SpanContextFromContext(ctx) }
		must(t, l.c.Locker("x").Do(ctx, func(ctx context.Context) error {
			if inside := trace.SpanFromContext(ctx); inside != outer {
				t.Error("the context of the hold has another span than the caller's")
			}
			return nil
		}))
		s := l.ended(t)
		if !s.Parent().Equal(outer.SpanContext()) {
			t.Errorf("child of %v, want of %v", s.Parent(), outer.SpanContext())
		}
		if !step.Equal(s.SpanContext()) {
			t.Errorf("the store was asked within %v, want %v", step, s.SpanContext())
		}
	})
}

// Steps that belong to no acquisition of ours are no events of whatever span the caller has.
func TestStepsOfOthers(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		recorder := tracetest.NewSpanRecorder()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
		ctx, outer := tracer.Start(t.Context(), "outer")
		lk := l.c.Locker("x")
		must(t, lk.LockContext(ctx))
		if _, err := lk.IsHeld(ctx); err != nil {
			t.Fatal(err)
		}
		must(t, lk.UnlockContext(ctx))
		outer.End()
		checkEvents(t, recorder.Ended()[0])
		checkEvents(t, l.ended(t), "distsync.step{step=acquire duration=0}")
	})
}

// Two that make spans for one client each have their own.
func TestSpansOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorders := []*tracetest.SpanRecorder{
			tracetest.NewSpanRecorder(), tracetest.NewSpanRecorder(),
		}
		var opts []dlock.Option
		for _, r := range recorders {
			tracer, err := oteldlock.New(
				oteldlock.WithTracerProvider(
					sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))))
			must(t, err)
			opts = append(opts, dlock.WithTrace(tracer))
		}
		c := dlock.New(membackend.New(), opts...)
		defer c.Close()
		must(t, c.Locker("x").LockContext(t.Context()))
		for _, r := range recorders {
			if n := len(r.Ended()); n != 1 {
				t.Errorf("%d spans, want one", n)
				continue
			}
			checkEvents(t, r.Ended()[0], "distsync.step{step=acquire duration=0}")
		}
	})
}

// A span that isn't sampled is still the parent of others, so that they aren't sampled either.
// Without spans the store gets the caller's context unchanged.
func TestNoSpans(t *testing.T) {
	for _, c := range []struct {
		name  string
		opt   oteldlock.Option
		child bool
	}{
		{"not sampled",
			oteldlock.WithTracerProvider(
				sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))), true},
		{"no-op", oteldlock.WithTracerProvider(noop.NewTracerProvider()), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			observed(t, func(t *testing.T, l *lab) {
				ctx, outer := sdktrace.NewTracerProvider().Tracer("test").
					Start(t.Context(), "outer")
				var span trace.Span
				l.store.seen = func(ctx context.Context) { span = trace.SpanFromContext(ctx) }
				must(t, l.c.Locker("x").LockContext(ctx))
				seen := span.SpanContext()
				if child := span != outer; child != c.child ||
					child == seen.Equal(outer.SpanContext()) || seen.IsSampled() == c.child {
					t.Errorf("the store was asked within %+v; the caller's was %+v", seen,
						outer.SpanContext())
				}
				if seen.TraceID() != outer.SpanContext().TraceID() {
					t.Error("the trace is another")
				}
			}, c.opt)
		})
	}
}

// The span is the example of what is measured.
func TestExemplars(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	recorder := tracetest.NewSpanRecorder()
	tracer, err := oteldlock.New(
		oteldlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))),
		oteldlock.WithTracerProvider(
			sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))))
	must(t, err)
	c := dlock.New(membackend.New(), dlock.WithTrace(tracer))
	defer c.Close()
	must(t, c.Locker("x").LockContext(t.Context()))
	want := recorder.Ended()[0].SpanContext().SpanID()
	if !hasExemplar(t, reader, "distsync.wait.duration", want) {
		t.Errorf("no example for the wait that is span %v", want)
	}
}

func TestBadOptions(t *testing.T) {
	for name, opt := range map[string]oteldlock.Option{
		"an option is nil":               nil,
		"the meter provider is nil":      oteldlock.WithMeterProvider(nil),
		"the tracer provider is nil":     oteldlock.WithTracerProvider(nil),
		"the function for labels is nil": oteldlock.WithNameLabel(nil),
	} {
		if _, err := oteldlock.New(opt); err == nil || err.Error() != "oteldlock: "+name {
			t.Errorf("%v, want oteldlock: %s", err, name)
		}
	}
}

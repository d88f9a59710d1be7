package oteldlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/oteldlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A lab is a client that is observed, another on the same store that isn't, and what was seen.
type lab struct {
	c, other *dlock.Client
	store    *fragile
	reader   *sdkmetric.ManualReader
	spans    *tracetest.SpanRecorder
}

// observed runs a test in a bubble.
func observed(t *testing.T, run func(t *testing.T, l *lab), opts ...oteldlock.Option) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, opts...)
		defer l.other.Close()
		defer l.c.Close()
		run(t, l)
	})
}

func newLab(t *testing.T, opts ...oteldlock.Option) *lab {
	l := &lab{
		reader: sdkmetric.NewManualReader(sdkmetric.WithTemporalitySelector(changes)),
		spans:  tracetest.NewSpanRecorder(),
	}
	memory := membackend.New()
	l.store = &fragile{Backend: memory}
	observer, err := oteldlock.New(append([]oteldlock.Option{
		oteldlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(l.reader))),
		oteldlock.WithTracerProvider(
			sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(l.spans))),
	}, opts...)...)
	must(t, err)
	quiet := dlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	l.c = dlock.New(l.store, quiet, dlock.WithTrace(observer))
	l.other = dlock.New(memory, quiet)
	return l
}

// changes makes counters begin at 0 after each look. Gauges and up-down counters keep their levels.
func changes(k sdkmetric.InstrumentKind) metricdata.Temporality {
	if k == sdkmetric.InstrumentKindUpDownCounter {
		return metricdata.CumulativeTemporality
	}
	return metricdata.DeltaTemporality
}

// want fails the test unless these are the measurements since the last look, and the levels other
// than 0. It looks at metrics whose names have one of the prefixes, or at all except
// distsync.store.
func (l *lab) want(t *testing.T, lines ...string) {
	t.Helper()
	l.wantOf(t, []string{"distsync.acquisitions", "distsync.wait", "distsync.held", "distsync.hold",
		"distsync.losses", "distsync.renewals"}, lines...)
}

func (l *lab) wantOf(t *testing.T, prefixes []string, lines ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, m := range l.measured(t) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(m, p) }) {
			got = append(got, m)
		}
	}
	slices.Sort(lines)
	if g, w := strings.Join(got, "\n"), strings.Join(lines, "\n"); g != w {
		t.Errorf("measured\n%s\nwant\n%s", g, w)
	}
}

// measured returns a line for each series that isn't 0: its name, attributes and value; of a
// histogram the count and the sum.
func (l *lab) measured(t *testing.T) (lines []string) {
	t.Helper()
	var all metricdata.ResourceMetrics
	must(t, l.reader.Collect(t.Context(), &all))
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					if p.Value != 0 {
						lines = append(lines, fmt.Sprintf("%s%s %d", m.Name,
							short(p.Attributes.ToSlice()), p.Value))
					}
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					if p.Value != 0 {
						lines = append(lines, fmt.Sprintf("%s%s %d", m.Name,
							short(p.Attributes.ToSlice()), p.Value))
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					lines = append(lines, fmt.Sprintf("%s%s %d %.3gs", m.Name,
						short(p.Attributes.ToSlice()), p.Count, p.Sum))
				}
			default:
				t.Fatalf("%s: %T", m.Name, m.Data)
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// short writes attributes without the prefix that most of them have.
func short(attrs []attribute.KeyValue) string {
	var words []string
	for _, a := range attrs {
		words = append(words, strings.TrimPrefix(string(a.Key), "distsync.")+"="+a.Value.String())
	}
	return "{" + strings.Join(words, " ") + "}"
}

// hasExemplar says whether a span is an example of a histogram's.
func hasExemplar(t *testing.T, reader sdkmetric.Reader, name string, span trace.SpanID) bool {
	t.Helper()
	var all metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &all))
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != name {
			continue
		}
		for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
			for _, e := range p.Exemplars {
				if trace.SpanID(e.SpanID) == span {
					return true
				}
			}
		}
	}
	return false
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fragile is a store that can be broken.
type fragile struct {
	backend.Backend
	broken atomic.Pointer[error]
	seen   func(ctx context.Context) // called by each attempt, unless it is nil
}

var errDown = &backend.Error{Kind: backend.Retry, Err: errors.New("down")}

func (f *fragile) breakWith(err error) { f.broken.Store(&err) }
func (f *fragile) mend()               { f.broken.Store(nil) }

func (f *fragile) failure() error {
	if err := f.broken.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *fragile) Open() backend.Session { return &session{f.Backend.Open().(whole), f} }

// whole can do what a session in memory can, except renew in batches.
type whole interface {
	backend.Session
	backend.Notifier
	backend.Liner
	backend.Inspector
}

type session struct {
	whole
	f *fragile
}

func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	if s.f.seen != nil {
		s.f.seen(ctx)
	}
	if err := s.f.failure(); err != nil {
		return backend.AcquireResult{}, err
	}
	return s.whole.Acquire(ctx, req)
}

func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	if err := s.f.failure(); err != nil {
		return backend.RenewResult{}, err
	}
	return s.whole.Renew(ctx, req)
}

func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	if err := s.f.failure(); err != nil {
		return backend.ReleaseResult{}, err
	}
	return s.whole.Release(ctx, req)
}

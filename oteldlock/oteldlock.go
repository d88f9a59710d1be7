package oteldlock

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed951563bd/distsync/dlock"
)

// scope is what the meter and the tracer are called.
const scope = "github.com/seed951563bd/distsync/oteldlock"

// Option configures [New].
type Option func(*config) error

type config struct {
	meters     metric.MeterProvider
	tracers    trace.TracerProvider
	label      func(name string) string
	attributes []attribute.KeyValue
}

// WithMeterProvider sets the provider of meters. The default is the global one, also if that is set
// after New. Set it before the first lock: holds and waits of before are counted only when they
// end.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) error {
		if p == nil {
			return errors.New("the meter provider is nil")
		}
		c.meters = p
		return nil
	}
}

// WithTracerProvider sets the provider of tracers. The default is the global one, also if that is
// set later. With that of go.opentelemetry.io/otel/trace/noop there are no spans.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) error {
		if p == nil {
			return errors.New("the tracer provider is nil")
		}
		c.tracers = p
		return nil
	}
}

// WithNameLabel adds the attribute distsync.name to measurements, with what label returns for a
// lock's name; if that is empty there is none. By default names are in spans only, since each value
// makes a time series of its own for every metric, and names are often unbounded. So label should
// return one of few values, such as "order" for "order:42". It is called for each event,
// concurrently. It must return the same for the same name always, and must not block.
func WithNameLabel(label func(name string) string) Option {
	return func(c *config) error {
		if label == nil {
			return errors.New("the function for labels is nil")
		}
		c.label = label
		return nil
	}
}

// WithAttributes adds attributes to all measurements and spans, such as the store if a program has
// several. The default is none but those of the package's overview.
func WithAttributes(attributes ...attribute.KeyValue) Option {
	return func(c *config) error {
		c.attributes = append(c.attributes, attributes...)
		return nil
	}
}

// New returns a Trace for [dlock.WithTrace] that measures, and makes spans: see the package. One may serve several clients, which then count
// together. The error is an option's, or the meter provider's.
func New(opts ...Option) (*dlock.Trace, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	m, err := newMeasures(c)
	if err != nil {
		return nil, err
	}
	s := &spans{c.tracers.Tracer(scope), c.attributes}
	return &dlock.Trace{
		AcquireStart: func(ctx context.Context, e dlock.AcquireStart) context.Context {
			m.acquireStart(ctx, e)
			return s.acquireStart(ctx, e)
		},
		AcquireDone: func(ctx context.Context, e dlock.AcquireDone) {
			m.acquireDone(ctx, e) // while the span is under way: it may be kept as an example
			s.acquireDone(ctx, e)
		},
		ReleaseDone: m.releaseDone,
		Lost:        m.lost,
		RenewDone:   m.renewDone,
		StepDone: func(ctx context.Context, e dlock.StepDone) {
			m.stepDone(ctx, e)
			s.stepDone(ctx, e)
		},
	}, nil
}

func newConfig(opts []Option) (config, error) {
	c := config{
		meters:  otel.GetMeterProvider(),
		tracers: otel.GetTracerProvider(),
		label:   func(string) string { return "" },
	}
	for _, opt := range opts {
		if opt == nil {
			return c, errors.New("oteldlock: an option is nil")
		}
		if err := opt(&c); err != nil {
			return c, fmt.Errorf("oteldlock: %w", err)
		}
	}
	return c, nil
}

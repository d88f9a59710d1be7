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

// scope is the name of the meter and the tracer.
const scope = "github.com/seed951563bd/distsync/oteldlock"

// Option configures [New].
type Option func(*config) error

type config struct {
	meters     metric.MeterProvider
	tracers    trace.TracerProvider
	label      func(name string) string
	attributes []attribute.KeyValue
}

// WithMeterProvider sets the meter provider. The default is the global one, even if the program
// sets it only after New. The program should set the global provider before it uses the first lock.
// Otherwise the numbers of holds and waits are too low from then on: a hold or wait that began
// earlier wasn't counted, but is subtracted when it ends.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) error {
		if p == nil {
			return errors.New("the meter provider is nil")
		}
		c.meters = p
		return nil
	}
}

// WithTracerProvider sets the tracer provider. The default is the global one, even if the program
// sets it only after New. With the provider of go.opentelemetry.io/otel/trace/noop there are no
// spans.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) error {
		if p == nil {
			return errors.New("the tracer provider is nil")
		}
		c.tracers = p
		return nil
	}
}

// WithNameLabel adds the attribute distsync.name to measurements. Its value is what the function
// label returns for the lock's name. If that is empty, the attribute is left out. By default only
// spans contain the name, because each value creates another time series for every metric, and
// there may be any number of names. So label should return one of a few values, such as "order" for
// "order:42". It is called for each event, concurrently. It must always return the same label for
// the same name, and must not block.
func WithNameLabel(label func(name string) string) Option {
	return func(c *config) error {
		if label == nil {
			return errors.New("the function for labels is nil")
		}
		c.label = label
		return nil
	}
}

// WithAttributes adds attributes to all measurements and spans, for example the store's name if a
// program uses several stores. By default there are only the attributes listed in the package's
// overview.
func WithAttributes(attributes ...attribute.KeyValue) Option {
	return func(c *config) error {
		c.attributes = append(c.attributes, attributes...)
		return nil
	}
}

// New returns a Trace for [dlock.WithTrace] that measures locks and creates spans, as described in
// the package's overview. If several clients share a Trace, their locks are counted together. New
// returns an error if an option is invalid or the meter provider fails.
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
			m.acquireDone(ctx, e) // before the span ends, so that an exemplar can refer to it
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

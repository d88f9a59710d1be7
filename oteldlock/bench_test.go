package oteldlock_test

import (
	"context"
	"testing"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/oteldlock"
)

// BenchmarkPair locks and unlocks in memory, where that takes next to nothing. So it measures the
// cost of a Trace.
func BenchmarkPair(b *testing.B) {
	meters := func() oteldlock.Option {
		return oteldlock.WithMeterProvider(
			sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader())))
	}
	spans := func(s sdktrace.Sampler) oteldlock.Option {
		return oteldlock.WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSampler(s)))
	}
	for _, c := range []struct {
		name string
		opts []oteldlock.Option // nil: no Trace
	}{
		{"no trace", nil},
		{"global providers, not set", []oteldlock.Option{}},
		{"measured", []oteldlock.Option{meters(),
			oteldlock.WithTracerProvider(noop.NewTracerProvider())}},
		{"measured, with a label",
			[]oteldlock.Option{
				meters(), oteldlock.WithTracerProvider(noop.NewTracerProvider()),
				oteldlock.WithNameLabel(func(name string) string { return name }),
			}},
		{"measured, spans not sampled",
			[]oteldlock.Option{meters(), spans(sdktrace.NeverSample())}},
		{"measured, spans sampled", []oteldlock.Option{meters(), spans(sdktrace.AlwaysSample())}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var opts []dlock.Option
			if c.opts != nil {
				t, err := oteldlock.New(c.opts...)
				if err != nil {
					b.Fatal(err)
				}
				opts = append(opts, dlock.WithTrace(t))
			}
			client := dlock.New(membackend.New(), opts...)
			defer client.Close()
			l := client.Locker("x")
			ctx := context.Background()
			b.ReportAllocs()
			for b.Loop() {
				if err := l.LockContext(ctx); err != nil {
					b.Fatal(err)
				}
				if err := l.UnlockContext(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

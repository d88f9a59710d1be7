package oteldlock_test

import (
	"context"
	"fmt"
	"strings"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/oteldlock"
)

// In production the reader is an exporter's, and the provider the global one.
func Example() {
	reader := sdkmetric.NewManualReader()
	trace, err := oteldlock.New(
		oteldlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	if err != nil {
		fmt.Println(err)
		return
	}
	client := dlock.New(membackend.New(), dlock.WithTrace(trace))
	defer client.Close()

	ctx := context.Background()
	for range 3 {
		err := client.Locker("report").Do(ctx, func(context.Context) error { return nil })
		if err != nil {
			fmt.Println(err)
		}
	}
	show(reader, "distsync.acquisitions")
	// Output: distsync.acquisitions {acquisition} exclusive acquired store: 3
}

// Names of locks are often without bound, and each value of an attribute is a time series for ever.
// A function says what of a name is worth that.
func ExampleWithNameLabel() {
	reader := sdkmetric.NewManualReader()
	trace, err := oteldlock.New(
		oteldlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))),
		oteldlock.WithNameLabel(func(name string) string {
			prefix, _, _ := strings.Cut(name, ":")
			return prefix
		}),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := dlock.New(membackend.New(), dlock.WithTrace(trace))
	defer client.Close()

	ctx := context.Background()
	for _, name := range []string{"order:1", "order:2", "order:3"} {
		if err := client.Locker(name).LockContext(ctx); err != nil {
			fmt.Println(err)
		}
	}
	show(reader, "distsync.held")
	// Output: distsync.held {lock} exclusive order: 3
}

// show prints a metric that counts.
func show(reader sdkmetric.Reader, name string) {
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		fmt.Println(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != name {
			continue
		}
		for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
			var values []string
			for _, attr := range p.Attributes.ToSlice() {
				values = append(values, attr.Value.String())
			}
			fmt.Printf("%s %s %s: %d\n", m.Name, m.Unit, strings.Join(values, " "), p.Value)
		}
	}
}

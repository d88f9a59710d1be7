package oteldlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/seed951563bd/distsync/dlock"
)

// Bucket boundaries, in seconds. A hand-over takes microseconds, a store's answer about a
// millisecond, and a hold may last for hours.
var (
	waitBuckets = []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300}
	holdBuckets = []float64{
		.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600, 4 * 3600, 24 * 3600,
	}
	storeBuckets = []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 10}
)

// measures holds the instruments for locks.
type measures struct {
	wait, hold, store              metric.Float64Histogram
	acquisitions, losses, renewals metric.Int64Counter
	held, waiting                  metric.Int64UpDownCounter

	label func(name string) string
	sets  sets
}

func newMeasures(c config) (*measures, error) {
	m := &measures{label: c.label, sets: sets{common: c.attributes, made: make(map[about]set)}}
	i := instruments{meter: c.meters.Meter(scope)}
	m.wait = i.histogram("distsync.wait.duration",
		"Duration of calls that acquire a lock, with any outcome.", waitBuckets)
	m.hold = i.histogram("distsync.hold.duration",
		"Time from the acquisition of a lock to its release or loss.", holdBuckets)
	m.store = i.histogram("distsync.store.duration", "Duration of steps of the store.",
		storeBuckets)
	m.acquisitions = i.counter("distsync.acquisitions", "{acquisition}",
		"Calls that acquire a lock, by outcome.")
	m.losses = i.counter("distsync.losses", "{loss}",
		"Locks that were lost while they were held, by reason.")
	m.renewals = i.counter("distsync.renewals", "{renewal}",
		"Renewals of locks, by outcome: whether the store answered.")
	m.held = i.level("distsync.held", "{lock}", "Locks that are held.")
	m.waiting = i.level("distsync.waiting", "{waiter}",
		"Calls that acquire a lock and have not returned.")
	if err := errors.Join(i.errs...); err != nil {
		return nil, fmt.Errorf("oteldlock: %w", err)
	}
	return m, nil
}

// instruments creates instruments, and collects the errors.
type instruments struct {
	meter metric.Meter
	errs  []error
}

func (i *instruments) histogram(
	name, description string, buckets []float64,
) metric.Float64Histogram {
	h, err := i.meter.Float64Histogram(name, metric.WithUnit("s"),
		metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(buckets...))
	i.errs = append(i.errs, err)
	return h
}

func (i *instruments) counter(name, unit, description string) metric.Int64Counter {
	n, err := i.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	i.errs = append(i.errs, err)
	return n
}

func (i *instruments) level(name, unit, description string) metric.Int64UpDownCounter {
	n, err := i.meter.Int64UpDownCounter(name, metric.WithUnit(unit),
		metric.WithDescription(description))
	i.errs = append(i.errs, err)
	return n
}

func (i *instruments) gauge(name, unit, description string) metric.Int64Gauge {
	n, err := i.meter.Int64Gauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	i.errs = append(i.errs, err)
	return n
}

func (m *measures) acquireStart(ctx context.Context, e dlock.AcquireStart) {
	lock := about{kind: e.Kind, name: m.label(e.Name)}
	set, first := m.sets.find(lock)
	if first {
		m.prime(ctx, lock)
	}
	count(ctx, m.waiting, 1, set)
}

// prime adds 0 to the counters of a lock's losses when the lock is first used. Otherwise
// Prometheus, for example, wouldn't see the first loss as an increase.
func (m *measures) prime(ctx context.Context, lock about) {
	for r := dlock.LossExpired; r <= dlock.LossLease; r++ {
		lock.reason = r.String()
		count(ctx, m.losses, 0, m.sets.of(lock))
	}
}

func (m *measures) acquireDone(ctx context.Context, e dlock.AcquireDone) {
	lock := about{kind: e.Kind, name: m.label(e.Name)}
	set := m.sets.of(lock)
	count(ctx, m.waiting, -1, set)
	if e.Outcome == dlock.OutcomeAcquired {
		lock.via = e.Via.String()
		if e.Via != dlock.ViaReentry {
			count(ctx, m.held, 1, set)
		}
	}
	lock.outcome, lock.failure = e.Outcome.String(), failureOf(e)
	set = m.sets.of(lock)
	count(ctx, m.acquisitions, 1, set)
	record(ctx, m.wait, e.Waited, set)
}

func (m *measures) releaseDone(ctx context.Context, e dlock.ReleaseDone) {
	lock := about{kind: e.Kind, name: m.label(e.Name), outcome: e.Outcome.String()}
	switch e.Outcome {
	case dlock.UnlockStillHeld, dlock.UnlockAlreadyLost:
		return
	case dlock.UnlockFailed:
		lock.failure = errorType(e.Err)
	}
	m.over(ctx, lock, e.Held)
}

func (m *measures) lost(l *dlock.Loss) {
	ctx := context.Background()
	lock := about{kind: l.Kind, name: m.label(l.Name), reason: l.Reason.String()}
	count(ctx, m.losses, 1, m.sets.of(lock))
	lock.reason, lock.outcome = "", "lost"
	m.over(ctx, lock, l.Held)
}

// over records that a hold has ended.
func (m *measures) over(ctx context.Context, lock about, held time.Duration) {
	record(ctx, m.hold, held, m.sets.of(lock))
	count(ctx, m.held, -1, m.sets.of(about{kind: lock.kind, name: lock.name}))
}

func (m *measures) renewDone(e dlock.RenewDone) {
	ctx := context.Background()
	if n := e.Locks - e.Failed; n > 0 {
		count(ctx, m.renewals, n, m.sets.of(about{kind: none, outcome: "answered"}))
	}
	if e.Failed > 0 {
		count(ctx, m.renewals, e.Failed, m.sets.of(about{
			kind: none, outcome: "error", failure: stepErrorType(e.Err),
		}))
	}
}

func (m *measures) stepDone(ctx context.Context, e dlock.StepDone) {
	step := about{kind: e.Kind, step: e.Op, failure: stepErrorType(e.Err)}
	switch e.Op {
	case "renew", "inspect", "list": // not about one kind of lock
		step.kind = none
	}
	record(ctx, m.store, e.Took, m.sets.of(step))
}

// A counter is an OpenTelemetry counter or up-down counter.
type counter interface {
	Enabled(ctx context.Context) bool
	Add(ctx context.Context, n int64, opts ...metric.AddOption)
}

// count adds to a counter, if it is enabled.
func count(ctx context.Context, c counter, n int, s set) {
	if c.Enabled(ctx) {
		c.Add(ctx, int64(n), s.add...)
	}
}

// record adds to a histogram, if it is enabled.
func record(ctx context.Context, h metric.Float64Histogram, d time.Duration, s set) {
	if h.Enabled(ctx) {
		h.Record(ctx, d.Seconds(), s.record...)
	}
}

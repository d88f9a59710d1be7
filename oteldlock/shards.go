package oteldlock

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
)

// Bucket boundaries, in seconds. A hand-over takes milliseconds, a death a lease, and finishing up to
// a grace.
var moveBuckets = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 20, 30, 60, 120, 300, 1800}

// division is what is measured of shards.
type division struct {
	running, overdue             metric.Int64UpDownCounter
	ends                         metric.Int64Counter
	delay, finish                metric.Float64Histogram
	members, lists, free, frozen metric.Int64Gauge
	sets                         sets
	ctx                          context.Context // of what is measured, which is no caller's
}

// Shards returns a Trace for [shards.WithTrace] that measures: see the package. One may serve several
// sets, of different names. It makes no spans. The error is an option's, or the meter provider's.
func Shards(opts ...Option) (shards.Trace, error) {
	c, err := newConfig(opts)
	if err != nil {
		return shards.Trace{}, err
	}
	d := &division{sets: sets{common: c.attributes, made: make(map[about]set)}, ctx: context.Background()}
	i := instruments{meter: c.meters.Meter(scope)}
	d.running = i.level("distsync.shards.running", "{shard}", "Shards that this process runs.")
	d.overdue = i.level("distsync.shards.overdue", "{shard}", "Runs that go on after their grace.")
	d.ends = i.counter("distsync.shards.ends", "{run}", "Runs of shards, as they end, by why.")
	d.delay = i.histogram("distsync.shards.start.delay",
		"From when a shard was wanted until its run began.", moveBuckets)
	d.finish = i.histogram("distsync.shards.finish.duration",
		"How long runs took to return when they were told to.", moveBuckets)
	d.members = i.gauge("distsync.shards.members", "{member}", "Members, as this one sees them.")
	d.lists = i.gauge("distsync.shards.lists", "{list}",
		"Lists of shards that members have. They disagree if it is more than 1.")
	d.free = i.gauge("distsync.shards.free", "{shard}", "Shards for which no member has room.")
	// Of a gauge with the unit 1 Prometheus' exporter makes a _ratio.
	d.frozen = i.gauge("distsync.shards.frozen", "{lock}",
		"1 while somebody writes the members' lock, so that none can change.")
	if err := errors.Join(i.errs...); err != nil {
		return shards.Trace{}, fmt.Errorf("oteldlock: %w", err)
	}
	return shards.Trace{Start: d.start, Overdue: d.late, End: d.end, Change: d.change}, nil
}

func (d *division) of(name, reason string) set {
	return d.sets.of(about{kind: none, set: name, reason: reason})
}

func (d *division) start(e shards.RunStart) {
	s := d.of(e.Set, "")
	count(d.ctx, d.running, 1, s)
	record(d.ctx, d.delay, e.Waited, s)
}

func (d *division) late(e shards.RunEnd) { count(d.ctx, d.overdue, 1, d.of(e.Set, "")) }

func (d *division) end(e shards.RunEnd) {
	s := d.of(e.Set, "")
	count(d.ctx, d.running, -1, s)
	if e.Overdue {
		count(d.ctx, d.overdue, -1, s)
	}
	if e.Cause != nil {
		record(d.ctx, d.finish, e.Finished, s)
	}
	count(d.ctx, d.ends, 1, d.of(e.Set, endOf(e)))
}

// endOf returns why a run has ended, in a word.
func endOf(e shards.RunEnd) string {
	switch {
	case e.Cause == nil:
		return "returned"
	case errors.Is(e.Cause, shards.ErrMoved):
		return "moved"
	case errors.Is(e.Cause, dlock.ErrLost):
		return "lost"
	default:
		return "stopped"
	}
}

func (d *division) change(c shards.Change) {
	s := d.of(c.Set, "")
	frozen := 0
	if c.Frozen {
		frozen = 1
	}
	for gauge, n := range map[metric.Int64Gauge]int{
		d.members: c.Members, d.lists: c.Lists, d.free: c.Free, d.frozen: frozen,
	} {
		if gauge.Enabled(d.ctx) {
			gauge.Record(d.ctx, int64(n), s.record...)
		}
	}
}

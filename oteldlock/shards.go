package oteldlock

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
)

// Bucket boundaries, in seconds. A hand-over takes milliseconds. If a member has died, its shards
// move after a lease. A run that is asked to finish may take as long as its grace period.
var moveBuckets = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 20, 30, 60, 120, 300, 1800}

// division holds the instruments for shards.
type division struct {
	running, overdue             metric.Int64UpDownCounter
	ends                         metric.Int64Counter
	delay, finish                metric.Float64Histogram
	members, lists, free, frozen metric.Int64Gauge
	sets                         sets
	ctx                          context.Context // a background: the events have no contexts
}

// Shards returns a Trace for [shards.WithTrace] that measures sets of shards, as described in the
// package's overview. Several sets may share it if their names differ. It creates no spans. Shards
// returns an error if an option is invalid or the meter provider fails.
func Shards(opts ...Option) (shards.Trace, error) {
	c, err := newConfig(opts)
	if err != nil {
		return shards.Trace{}, err
	}
	d := &division{
		sets: sets{common: c.attributes, made: make(map[about]set)}, ctx: context.Background(),
	}
	i := instruments{meter: c.meters.Meter(scope)}
	d.running = i.level("distsync.shards.running", "{shard}", "Shards that this process runs.")
	d.overdue = i.level("distsync.shards.overdue", "{shard}",
		"Runs that go on after their grace time.")
	d.ends = i.counter("distsync.shards.ends", "{run}", "Ended runs of shards, by reason.")
	d.delay = i.histogram("distsync.shards.start.delay",
		"Time from when a shard was wanted to the start of its run.", moveBuckets)
	d.finish = i.histogram("distsync.shards.finish.duration",
		"Time that runs took to return after they were told to.", moveBuckets)
	d.members = i.gauge("distsync.shards.members", "{member}", "Members that this member sees.")
	d.lists = i.gauge("distsync.shards.lists", "{list}",
		"Different lists of shards among the members. With more than 1 they disagree.")
	d.free = i.gauge("distsync.shards.free", "{shard}", "Shards for which no member has room.")
	// With unit 1, Prometheus' exporter would add _ratio to the gauge's name.
	d.frozen = i.gauge("distsync.shards.frozen", "{lock}",
		"1 while a client holds the members' lock as a writer, so that no member can change.")
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

// endOf returns the value of the "reason" attribute for a run that has ended.
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

package oteldlock_test

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/oteldlock"
)

// Shards of which some are run, one returns early, and one goes on after its grace.
func TestShards(t *testing.T) {
	observed(t, func(t *testing.T, l *lab) {
		seen := &lab{reader: sdkmetric.NewManualReader(sdkmetric.WithTemporalitySelector(changes))}
		trace, err := oteldlock.Shards(
			oteldlock.WithMeterProvider(
				sdkmetric.NewMeterProvider(sdkmetric.WithReader(seen.reader))),
			oteldlock.WithNameLabel(func(string) string { return "unused" }))
		must(t, err)
		quiet := shards.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
		goOn := make(chan struct{})
		run := func(ctx context.Context, s *shards.Shard) error {
			if s.Name() == "early" {
				return nil
			}
			<-ctx.Done()
			if s.Name() == "late" {
				<-goOn
			}
			return nil
		}
		member := func(set *shards.Set) (end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { set.Run(ctx, run); close(done) }()
			return func() { cancel(); <-done }
		}
		all := []string{"distsync.shards"}
		end := member(shards.New(l.c, "s", []string{"a", "b", "c", "early", "late"},
			shards.WithTrace(trace), shards.Grace(5*time.Second), quiet))
		time.Sleep(500 * time.Millisecond)
		seen.wantOf(t, all,
			"distsync.shards.running{set=s} 4",
			"distsync.shards.ends{reason=returned set=s} 1",
			"distsync.shards.start.delay{set=s} 5 0s",
			"distsync.shards.members{set=s} 1",
			"distsync.shards.lists{set=s} 1")

		endOther := member(shards.New(l.other, "s", []string{"x"}, quiet))
		time.Sleep(time.Minute)
		got := seen.measured(t)
		for _, want := range []string{"distsync.shards.members{set=s} 2",
			"distsync.shards.lists{set=s} 2"} {
			contains(t, got, want)
		}
		endOther()

		ended := make(chan struct{})
		go func() { end(); close(ended) }()
		time.Sleep(10 * time.Second)
		got = seen.measured(t)
		for _, want := range []string{"distsync.shards.running{set=s} 1",
			"distsync.shards.overdue{set=s} 1"} {
			contains(t, got, want)
		}
		close(goOn)
		<-ended
		seen.wantOf(t, all,
			"distsync.shards.ends{reason=stopped set=s} 1",
			"distsync.shards.finish.duration{set=s} 1 9.35s")
	})
}

func contains(t *testing.T, lines []string, want string) {
	t.Helper()
	if !slices.Contains(lines, want) {
		t.Errorf("no %s among\n%s", want, strings.Join(lines, "\n"))
	}
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// joins has a client be a member until the test is over.
func joins(t *testing.T, c *dlock.Client, name string, list []string, opts ...shards.Option) {
	ctx, cancel := context.WithCancel(t.Context())
	set := shards.New(c, name, list, opts...)
	done := make(chan struct{})
	go func() {
		defer close(done)
		set.Run(ctx, func(ctx context.Context, _ *shards.Shard) error { <-ctx.Done(); return nil })
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func TestShards(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, url string) {
		show := func(args ...string) result {
			return inside(t.Context(), append([]string{"shards", "--store", url}, args...)...)
		}
		if got := show("none", "--check"); got.status != exitFailed ||
			got.stdout != "nobody is a member\n" ||
			!strings.Contains(got.stderr, "shards of none: nobody is a member") {
			t.Errorf("nobody: %+v", got)
		}
		lease := dlock.WithLease(3 * time.Second)
		joins(t, client(t, url, dlock.WithClientID("web-1"), lease), "billing", shards.Numbered(12),
			shards.Address("10.0.0.1:80"))
		joins(t, client(t, url, dlock.WithClientID("web-2"), lease), "billing", shards.Numbered(12))
		testservers.Until(t, "both have six", func() bool {
			got := lines[division](t, show("billing", "--json").stdout)
			return len(got) == 1 && len(got[0].Members) == 2 &&
				got[0].Members[0].Has == 6 && got[0].Members[1].Has == 6
		})
		got := show("billing", "--check")
		if got.status != 0 || got.stderr != "" {
			t.Errorf("all is well: %+v", got)
		}
		for _, want := range []string{"MEMBER", "10.0.0.1:80", "numbered 12", "SHARD", "held"} {
			if !strings.Contains(got.stdout, want) {
				t.Errorf("it lacks %s:\n%s", want, got.stdout)
			}
		}
		_, table, _ := strings.Cut(got.stdout, "SHARD")
		for i, row := range slices.Collect(strings.Lines(table))[1:] {
			fields := strings.Join(strings.Fields(row), " ")
			if fields != fmt.Sprintf("%d held web-1", i) &&
				fields != fmt.Sprintf("%d held web-2", i) {
				t.Errorf("row %d: %q", i, row)
			}
		}
		if got := show("billing", "--check", "--quiet", "--list", "24"); got.status != exitFailed ||
			got.stdout != "" ||
			!strings.Contains(got.stderr, "12 are free: 12, 13,") ||
			!strings.Contains(got.stderr, "and so on") {
			t.Errorf("of 24: %+v", got)
		}
		if got := show("billing", "3", "x", "--check"); got.status != exitFailed ||
			!strings.Contains(got.stderr, "shards of billing: 1 are free: x") ||
			strings.Contains(got.stdout, "\n4 ") {
			t.Errorf("of two by name: %+v", got)
		}

		// Names that aren't numbers, of members that disagree.
		joins(t, client(t, url, dlock.WithClientID("web-1"), lease), "q@!", []string{"a", "b\x1b"})
		joins(t, client(t, url, dlock.WithClientID("web-2"), lease), "q@!", []string{"a"})
		testservers.Until(t, "both are members, and all shards run", func() bool {
			got := lines[division](t, show("q@!", "--json").stdout)
			return len(got) == 1 && len(got[0].Members) == 2 && len(got[0].Shards) == 2
		})
		got = show("q@!", "--check")
		if got.status != exitFailed || !strings.Contains(got.stderr, "members have 2 lists") ||
			!strings.Contains(got.stdout, `"b\x1b"`) {
			t.Errorf("those who disagree: %+v", got)
		}
		if got := show("billing", "x", "--list", "3"); got.status != exitUsage {
			t.Errorf("both a list and names: %+v", got)
		}
	})
}

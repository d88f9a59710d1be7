package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
)

// play starts, kills and replaces replicas, and shows the distribution of the shards.
func play(
	ctx context.Context, out io.Writer, store backend.Backend, start func(
		name string,
	) (*replica, error),
) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // a run takes half a minute
	defer cancel()
	client := dlock.New(store)
	defer client.Close()
	w := &watcher{
		set: shards.New(client, setName, shards.Numbered(count)), out: out, draws: isTerminal(out),
	}
	var all []*replica
	defer func() {
		for _, r := range all {
			r.kill()
		}
	}()
	add := func() error {
		r, err := start(string(rune('A' + w.started)))
		if err == nil {
			w.started++
			all = append(all, r)
		}
		return err
	}
	for range 3 {
		if err := add(); err != nil {
			return err
		}
	}
	if err := w.await(ctx, "three replicas have started", 3); err != nil {
		return err
	}
	all[0].kill()
	all = all[1:]
	if err := w.await(ctx, "one is killed, and its lease is over", 2); err != nil {
		return err
	}
	if err := add(); err != nil {
		return err
	}
	if err := w.await(ctx, "another has started", 3); err != nil {
		return err
	}

	// A deploy starts the new replica first, and then ends the old one.
	if err := add(); err != nil {
		return err
	}
	if err := w.members(ctx, 4); err != nil {
		return err
	}
	old := all[0]
	all = all[1:]
	if err := old.end(); err != nil {
		return err
	}
	if err := w.await(ctx, "one is deployed anew", 3); err != nil {
		return err
	}
	for len(all) > 0 {
		last := all[0]
		all = all[1:]
		if err := last.end(); err != nil {
			return err
		}
	}
	return nil
}

// A watcher observes which replica owns which shard.
type watcher struct {
	set     *shards.Set
	out     io.Writer
	draws   bool // print a table once a second
	started int
	drawn   time.Time
}

// await waits until there are n replicas with the same number of shards each. Meanwhile it draws
// the table.
func (w *watcher) await(ctx context.Context, what string, n int) error {
	for {
		owners, err := w.look(ctx)
		if err != nil {
			return err
		}
		load := map[string]int{}
		for _, name := range owners {
			load[name]++
		}
		even := len(load) == n
		for _, shards := range load {
			even = even && shards == count/n
		}
		w.draw(owners)
		if even && load["."] == 0 {
			w.clear()
			fmt.Fprintf(w.out, "%s: %d have %d shards each\n", what, n, count/n)
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("%s, and they have %v: %w", what, load, err)
		}
	}
}

// look returns the owner of each shard: the name of a replica, or a dot if the shard is free.
func (w *watcher) look(ctx context.Context) (owners []string, err error) {
	for shard, err := range w.set.Table(ctx) {
		if err != nil {
			return nil, err
		}
		if shard.State == shards.Free {
			shard.Owner = "."
		}
		owners = append(owners, shard.Owner)
	}
	return owners, nil
}

// members waits until there are n members.
func (w *watcher) members(ctx context.Context, n int) error {
	for {
		all, err := w.set.Members(ctx)
		if err != nil || len(all) == n {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(50 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// draw prints a row for each replica, once a second. It replaces the rows printed before.
func (w *watcher) draw(owners []string) {
	if !w.draws || time.Since(w.drawn) < time.Second {
		return
	}
	w.clear()
	w.drawn = time.Now()
	names := slices.Compact(slices.Sorted(slices.Values(owners)))
	for i := range rows {
		if i >= len(names) {
			fmt.Fprintln(w.out)
			continue
		}
		var row strings.Builder
		for shard, name := range owners {
			if name == names[i] {
				fmt.Fprintf(&row, "%3d", shard)
			} else {
				row.WriteString("   ")
			}
		}
		fmt.Fprintf(w.out, "%s %s\n", names[i], &row)
	}
}

const rows = 5

// clear removes the rows that draw printed.
func (w *watcher) clear() {
	if !w.drawn.IsZero() {
		fmt.Fprintf(w.out, "\x1b[%dA\x1b[J", rows)
		w.drawn = time.Time{}
	}
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

package docs_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestReadmeConstructor(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	client := dlock.New(redisbackend.New(rdb))

	check(t, client.Close(), rdb.Close())
}

// lockCell is a kind of lock in the table: a link, and the call that makes it.
var lockCell = regexp.MustCompile("\\| \\[[^]]+\\]\\([^)]+\\) \\| `([^`]+)` ")

// The table of locks has a call for each: the lines below begin with these calls, and each does
// something.
func TestReadmeTable(t *testing.T) {
	_, table, _ := strings.Cut(contentOf(t, "../README.md"), "\n| which lock |")
	table, _, _ = strings.Cut(table, "\n\n")
	cells := lockCell.FindAllStringSubmatch(table, -1)
	if all := strings.Count(table, "`") / 2; len(cells) != all {
		t.Errorf("%d of %d calls of the table have a link", len(cells), all)
	}
	source := contentOf(t, "readme_test.go")
	for _, cell := range cells {
		if !strings.Contains(source, "return "+cell[1]) &&
			!strings.Contains(source, " := "+cell[1]) {
			t.Errorf("is no call of readme_test.go: %s", cell[1])
		}
	}

	const name, day, d = "lock:orders:42", "2026-11-22", time.Hour
	list := shards.Numbered(64)
	done := 0
	work := func(context.Context) error { done++; return nil }
	job := work

	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		one, two := client.Locker("account:7"), client.Locker("account:8")
		lines := []func() error{
			func() error { return client.Locker(name).Do(ctx, work) },
			func() error { return client.FairLocker(name).Do(ctx, work) },
			func() error { return client.FencedLocker(name).Do(ctx, work) },
			func() error { return client.RWLocker(name).Reader().Do(ctx, work) },
			func() error { return dlock.All(one, two).Do(ctx, work) },
			func() error { return client.Election(name).Run(ctx, work) },
			func() error {
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				var once sync.Once
				set := shards.New(client, name, list)
				err := set.Run(ctx, func(ctx context.Context, _ *shards.Shard) error {
					once.Do(func() { done++; stop() })
					<-ctx.Done()
					return nil
				})
				if errors.Is(err, context.Canceled) {
					err = nil
				}
				return err
			},
			func() error {
				ran, err := client.Once(ctx, name, day, d, job)
				if !ran {
					t.Error("the job didn't run")
				}
				return err
			},
			func() error {
				const name = "slots"
				return client.Semaphore(name, 10).Do(ctx, 1, work)
			},
			func() error {
				const name = "import"
				done++
				return client.Latch(name).Wait(ctx)
			},
		}
		if len(lines) != len(cells) {
			t.Errorf("the table has %d calls, and this test %d lines", len(cells), len(lines))
		}
		for _, line := range lines {
			check(t, line())
		}
		if done != len(lines) {
			t.Errorf("%d of %d lines did something", done, len(lines))
		}
	})
}

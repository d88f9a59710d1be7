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

// lockRow is a row of the table of locks: what it links to, and its line of code.
var lockRow = regexp.MustCompile("(?m)^\\| .*\\]\\([^)]*\\).* \\| `([^`]+)` \\|$")

// The table of locks, a line each: the lines below are those of the table, and each does something.
func TestReadmeTable(t *testing.T) {
	_, table, _ := strings.Cut(contentOf(t, "../README.md"), "\n| Which lock |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := lockRow.FindAllStringSubmatch(table, -1)
	if all := strings.Count(table, "\n| "); len(rows) != all {
		t.Errorf("%d of %d rows of the table have a link and a line", len(rows), all)
	}
	source := contentOf(t, "readme_test.go")
	for _, row := range rows {
		if !strings.Contains(source, " := "+row[1]+"\n") {
			t.Errorf("is no line of readme_test.go: %s", row[1])
		}
	}

	day := "2026-11-22"
	list := shards.Numbered(64)
	done := 0
	work := func(context.Context) error { done++; return nil }
	ship, serve, pay, read, send, transfer, makeReport := work, work, work, work, work, work, work

	inMemory(t, func(t *testing.T, ctx context.Context, client *dlock.Client) {
		from, to := client.Locker("account:7"), client.Locker("account:8")
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		lead := func(context.Context) error { done++; return nil }
		lines := []func() error{
			func() error {
				err := client.Locker("lock:orders:42").Do(ctx, ship)
				return err
			},
			func() error {
				err := client.FairLocker("lock:till:3").Do(ctx, serve)
				return err
			},
			func() error {
				err := client.FencedLocker("lock:account:7").Do(ctx, pay)
				return err
			},
			func() error {
				err := client.RWLocker("lock:prices").Reader().Do(ctx, read)
				return err
			},
			func() error {
				err := client.Semaphore("slots:mailer", 10).Do(ctx, 1, send)
				return err
			},
			func() error {
				err := dlock.All(from, to).Do(ctx, transfer)
				return err
			},
			func() error {
				err := client.Election("billing").Run(ctx, lead)
				return err
			},
			func() error {
				ctx, stop := context.WithCancel(ctx)
				var once sync.Once
				work := func(ctx context.Context, _ *shards.Shard) error {
					once.Do(func() { done++; stop() })
					<-ctx.Done()
					return nil
				}
				err := shards.New(client, "billing", list).Run(ctx, work)
				if errors.Is(err, context.Canceled) {
					err = nil
				}
				return err
			},
			func() error {
				ran, err := client.Once(ctx, "report", day, time.Hour, makeReport)
				if !ran {
					t.Error("made no report")
				}
				return err
			},
			func() error {
				err := client.Latch("import:2026-11-22").Wait(ctx)
				done++
				return err
			},
		}
		if len(lines) != len(rows) {
			t.Errorf("the table has %d rows, and this test %d lines", len(rows), len(lines))
		}
		for _, line := range lines {
			check(t, line())
		}
		if done != len(lines) {
			t.Errorf("%d of %d lines did something", done, len(lines))
		}
	})
}

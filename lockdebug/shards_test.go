package lockdebug_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
	"github.com/seed951563bd/distsync/lockdebug"
	"github.com/seed951563bd/distsync/membackend"
)

func TestShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		c, other := newClient(t, store, dlock.WithClientID("a")),
			newClient(t, store, dlock.WithClientID("b"))
		quiet := shards.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
		names := []string{"fails", "hangs", "<b>runs", "bad\xff"}
		set := shards.New(c, "work<", names, shards.Grace(time.Second),
			shards.Address("10.0.0.1:80"), quiet)
		goOn := make(chan struct{})
		run := func(set *shards.Set, run func(context.Context, *shards.Shard) error) (end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { set.Run(ctx, run); close(done) }()
			return func() { cancel(); <-done }
		}
		h := lockdebug.HandlerOf([]*dlock.Client{c}, []*shards.Set{set})
		if page := get(t, h, "/"); !strings.Contains(page, "This process isn't a member.") ||
			!strings.Contains(page, "This process has none.") {
			t.Error("before Run it is a member")
		}
		end := run(set, func(ctx context.Context, s *shards.Shard) error {
			switch s.Name() {
			case "fails":
				time.Sleep(time.Minute)
				return errors.New("broken <i>")
			case "hangs":
				<-goOn
			default:
				<-ctx.Done()
			}
			return nil
		})
		time.Sleep(time.Minute + 500*time.Millisecond)
		page := get(t, h, "/")
		got := rows(page, "shards")
		for i, want := range []string{
			`<b>runs \| running \| \d+ \| 1 min 0 s`,
			`bad\\xff \| running \| \d+ \| 1 min 0 s`,
			`fails \| failing broken <i> \| – \| \d+ ms`,
			`hangs \| running \| \d+ \| 1 min 0 s`,
		} {
			if len(got) != 4 || !regexp.MustCompile("^"+want+"$").MatchString(got[i]) {
				t.Errorf("%q, want %s", got, want)
			}
		}
		if text := section(page, "shards"); !strings.HasPrefix(text, "Shards work< ") ||
			!strings.Contains(text, " a 10.0.0.1:80 seated 0 ") {
			t.Error(text)
		}
		endOther := run(shards.New(other, "work<", []string{"x"}, quiet), func(
			ctx context.Context, _ *shards.Shard,
		) error {
			<-ctx.Done()
			return nil
		})
		time.Sleep(time.Minute)
		if page := get(t, h, "/"); !strings.Contains(page,
			"Members have different lists of shards.") {
			t.Error("it isn't said that lists differ")
		}
		endOther()

		go end()
		time.Sleep(5 * time.Second)
		sets := getJSON(t, h, "/").Sets
		if len(sets) != 1 || sets[0].Name != "work<" || len(sets[0].Members) == 0 ||
			len(sets[0].Shards) != 1 {
			t.Fatalf("%+v", sets)
		}
		i := slices.IndexFunc(sets[0].Members, func(m memberOf) bool { return m.Client == "a" })
		m, s := sets[0].Members[max(i, 0)], sets[0].Shards[0]
		if m.Client != "a" || m.Run == "" || m.Weight != 1 || !slices.Equal(m.Seats, []int{0}) {
			t.Errorf("the member: %+v", m)
		}
		if s.Name != "hangs" || s.State != "overdue" || s.Token == 0 || s.For <= 0 {
			t.Errorf("the shard: %+v", s)
		}
		close(goOn)
		end()
	})
}

func TestNilSet(t *testing.T) {
	defer func() {
		if got, _ := recover().(string); !strings.Contains(got, "a set of shards is nil") {
			t.Errorf("HandlerOf panics with %q", got)
		}
	}()
	lockdebug.HandlerOf(nil, []*shards.Set{nil})
}

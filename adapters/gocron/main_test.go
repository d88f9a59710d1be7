package gocronlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	gocronlock "github.com/seed951563bd/distsync/adapters/gocron"
	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/fleet"
	"github.com/seed951563bd/distsync/internal/test/overview"
)

func TestMain(m *testing.M) { fleet.Main(m, replica) }

func TestTheProgramOfTheOverview(t *testing.T) { overview.Compiles(t) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lease is how late a loss is found, at the most, and three times that.
const lease = 3 * time.Second

// newScheduler returns a scheduler that runs, until the end of the test.
func newScheduler(t *testing.T, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(opts...)
	must(t, err)
	t.Cleanup(func() { s.Shutdown() }) // it may have been shut down
	s.Start()
	return s
}

// A tally counts what has become of runs.
type tally struct {
	ran, skipped, failed atomic.Int32

	mu   sync.Mutex
	last error // of the last run that was skipped or failed
}

// listen returns the job options by which the tally is told.
func (c *tally) listen() gocron.JobOption {
	return gocron.WithEventListeners(
		gocron.AfterJobRuns(func(uuid.UUID, string) { c.ran.Add(1) }),
		gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { c.note(&c.skipped, err) }),
		gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) {
			c.note(&c.failed, err)
		}),
	)
}

func (c *tally) note(n *atomic.Int32, err error) {
	c.mu.Lock()
	c.last = err
	c.mu.Unlock()
	n.Add(1)
}

// is says whether the last run was skipped or failed with that.
func (c *tally) is(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Is(c.last, err)
}

// text is what the last run was skipped or failed with.
func (c *tally) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.last)
}

// A logbook is what was logged.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// logger returns one that writes warnings into the book.
func (b *logbook) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func (b *logbook) says(what string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.text.String(), what)
}

func (b *logbook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A cuttable store doesn't answer while it is cut off.
type cuttable struct {
	backend.Backend
	cut *atomic.Bool
}

func newCuttable(b backend.Backend) cuttable { return cuttable{b, new(atomic.Bool)} }

func (c cuttable) Open() backend.Session { return cuttableSession{c.Backend.Open(), c.cut} }

type cuttableSession struct {
	backend.Session
	cut *atomic.Bool
}

// unless makes a step, unless the store is cut off.
func unless[Request, Result any](
	s cuttableSession, ctx context.Context, step func(context.Context, Request) (Result, error),
	req Request,
) (res Result, err error) {
	if s.cut.Load() {
		select {
		case <-ctx.Done():
			return res, ctx.Err()
		case <-time.After(10 * time.Second): // as clients of stores do
			return res, os.ErrDeadlineExceeded
		}
	}
	return step(ctx, req)
}

func (s cuttableSession) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	return unless(s, ctx, s.Session.Acquire, req)
}

func (s cuttableSession) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	return unless(s, ctx, s.Session.Renew, req)
}

func (s cuttableSession) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	return unless(s, ctx, s.Session.Release, req)
}

func (s cuttableSession) Look(
	ctx context.Context, req backend.LookRequest,
) (backend.LookResult, error) {
	return unless(s, ctx, s.Session.Look, req)
}

// soon is a time at which jobs of several schedulers can be made to begin.
func soon() time.Time { return time.Now().Add(200 * time.Millisecond) }

func quick(context.Context) error { return nil }

func newLocker(t *testing.T, c *dlock.Client, opts ...gocronlock.Option) *gocronlock.Locker {
	return gocronlock.NewLocker(c,
		append([]gocronlock.Option{gocronlock.WithLogger(slog.New(slog.DiscardHandler))},
			opts...)...)
}

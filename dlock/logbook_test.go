package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// slowHandler is a logger that takes its time.
type slowHandler struct {
	slog.Handler
	by      time.Duration
	records *atomic.Int64
}

func (h slowHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (h slowHandler) Handle(context.Context, slog.Record) error {
	time.Sleep(h.by)
	h.records.Add(1)
	return nil
}

func slowLogger(by time.Duration) (Option, *atomic.Int64) {
	records := new(atomic.Int64)
	return WithLogger(slog.New(slowHandler{slog.DiscardHandler, by, records})), records
}

func TestASlowLoggerDelaysNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, records := slowLogger(50 * time.Millisecond)
		store := newScript(membackend.New())
		store.renew.fail(errors.New("no answer"))
		c := New(store, logger)
		begin := time.Now()
		var latest atomic.Int64
		var all sync.WaitGroup
		const holders = 1000
		for i := range holders {
			all.Go(func() {
				c.Locker(fmt.Sprint(i)).Do(t.Context(), func(ctx context.Context) error {
					<-ctx.Done()
					latest.Store(max(latest.Load(), int64(time.Since(begin)-DefaultLease)))
					return nil
				})
			})
		}
		all.Wait()
		if late := time.Duration(latest.Load()); late > 0 {
			t.Errorf("the last of %d holders was told %v after its lease", holders, late)
		}
		time.Sleep(time.Hour)
		if n := records.Load(); n < holders {
			t.Errorf("%d records of %d losses", n, holders)
		}
		c.Close()
	})
}

func TestASlowLoggerLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, _ := slowLogger(50 * time.Millisecond)
		store := membackend.New()
		c, other := New(store, WithLease(3*time.Second), logger), New(store, quiet())
		defer other.Close()
		const n = 1000
		var all []*Locker
		for i := range n {
			l := c.Locker(fmt.Sprint(i))
			mustTry(t, l)
			all = append(all, l)
		}
		for i := range n / 2 {
			other.Locker(fmt.Sprint(i)).ForceUnlock(t.Context())
		}
		time.Sleep(20 * time.Second)
		for _, l := range all[n/2:] {
			if held, err := l.IsHeld(t.Context()); !held || err != nil {
				t.Fatalf("a lock that nobody touched was lost: %v, %v", held, err)
			}
		}
		time.Sleep(time.Minute) // the logger needs half of that for what was lost
		c.Close()
		// a Locker that is let go of while it has a lock is logged by a goroutine of the runtime,
		// in real time
		runtime.KeepAlive(all)
	})
}

// A logger that stands still keeps no more records than there is room for.
func TestALoggerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, records := slowLogger(time.Hour)
		c := New(membackend.New(), logger)
		for range 10 * longestLogbook {
			c.warn("x")
		}
		c.log.mu.Lock()
		if n := len(c.log.waiting); n > longestLogbook {
			t.Errorf("%d records wait", n)
		}
		c.log.mu.Unlock()
		c.Close()
		time.Sleep(3 * longestLogbook * time.Hour)
		if n := records.Load(); n < 1 || n > 2*longestLogbook+2 {
			// those that it had taken when it stood still, and those that waited
			t.Errorf("%d records were written", n)
		}
	})
}

// Calls that nothing bounds say in the log, now and then, that the store is unavailable; the others
// return it.
func TestWaitingForAStoreIsLogged(t *testing.T) {
	for name, test := range map[string]struct {
		call func(ctx context.Context, l *Locker)
		logs bool
	}{
		"LockContext": {func(ctx context.Context, l *Locker) { l.LockContext(ctx) }, true},
		"Do": {func(ctx context.Context, l *Locker) {
			l.Do(ctx, func(
				context.Context,
			) error {
				return nil
			})
		}, true},
		"Wait": {func(ctx context.Context, l *Locker) {
			l.LockContext(ctx, Wait(time.Minute))
		}, false},
		"deadline": {func(ctx context.Context, l *Locker) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			l.LockContext(ctx)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScript(membackend.New())
				b.acquire.fail(&backend.Error{
					Kind: backend.Retry, Err: errors.New("no connection"),
				})
				logger, records := slowLogger(0)
				c := New(b, logger)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { test.call(ctx, c.Locker("x")); close(done) }()
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if n := records.Load(); (n > 0) != test.logs || n > 3 {
					// after 0, 0.5, 1.5 s at most
					t.Errorf("%d records in two seconds", n)
				}
				time.Sleep(time.Hour)
				if n := records.Load(); (n > 30) != test.logs || n > 150 {
					t.Errorf("%d records in an hour", n)
				}
				cancel()
				<-done
				c.Close()
			})
		})
	}
}

// Close says what is held still.
func TestCloseLogsWhatIsHeld(t *testing.T) {
	for _, held := range []bool{true, false} {
		var text strings.Builder
		c := New(membackend.New(), WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		l := c.Locker("orders:42")
		mustTry(t, l)
		if !held {
			l.Unlock()
		}
		c.Close()
		if got := strings.Contains(text.String(), "orders:42"); got != held {
			t.Errorf("held %v: %q", held, text.String())
		}
	}
}

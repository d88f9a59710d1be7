package recipes

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// nextAfter says how long after a report was begun another process gets its lock. The report takes
// six minutes, and looks at its context only then, unless its process dies after a second.
func nextAfter(
	t *testing.T, dies bool, do func(
		context.Context, *dlock.Locker, func(context.Context) error,
	) error,
) (waited time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		way := lineTo(store)
		lock, next := replicaOn(t, way).Locker("lock:report"),
			replicaOn(t, store).Locker("lock:report")
		began, done := time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			do(t.Context(), lock, func(ctx context.Context) error {
				time.Sleep(time.Second)
				way.down.Store(dies)
				time.Sleep(6*time.Minute - time.Second)
				return ctx.Err()
			})
		}()
		synctest.Wait()
		next.Lock()
		waited = time.Since(began)
		next.Unlock()
		<-done
	})
	return waited
}

func TestALeaseThatIsATimeout(t *testing.T) {
	if waited := nextAfter(t, false, makeReportWrong); waited >= 6*time.Minute {
		t.Errorf("another waited for %v, until the report was made", waited)
	}
	if waited := nextAfter(t, true, makeReportWrong); waited < 5*time.Minute {
		t.Errorf("another waited for a dead process for %v only", waited)
	}
}

func TestATimeoutInARenewedLease(t *testing.T) {
	if waited := nextAfter(t, false, makeReport); waited < 6*time.Minute {
		t.Errorf("another waited for %v only, while the report was being made", waited)
	}
	if waited := nextAfter(t, true, makeReport); waited > 31*time.Second {
		t.Errorf("another waited for a dead process for %v", waited)
	}
}

// lostInAnOutage says how many of sixty locks, of different ages, are lost when the store doesn't
// answer for that share of a lease.
func lostInAnOutage(t *testing.T, share float64, begin func(*line), end func(*line)) (lost int) {
	synctest.Test(t, func(t *testing.T) {
		way := lineTo(membackend.New())
		client := replicaOn(t, way)
		var holds []*dlock.Hold
		for i := range 60 {
			h, err := client.Locker(fmt.Sprint("lock:", i)).Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, h)
			time.Sleep(time.Second)
		}
		for range 10 { // at different times after a renewal
			begin(way)
			time.Sleep(time.Duration(share * float64(dlock.DefaultLease)))
			end(way)
			time.Sleep(dlock.DefaultLease + 1100*time.Millisecond)
		}
		for _, h := range holds {
			switch err := h.Release(t.Context()); {
			case errors.Is(err, dlock.ErrLost):
				lost++
			case err != nil:
				t.Error(err)
			}
		}
	})
	return lost
}

func TestAnOutageOfPartOfALease(t *testing.T) {
	for name, state := range map[string]func(*line, bool){
		"refused": func(l *line, on bool) { l.down.Store(on) },
		"silent":  func(l *line, on bool) { l.silent.Store(on) },
	} {
		t.Run(name, func(t *testing.T) {
			begin, end := func(l *line) { state(l, true) }, func(l *line) { state(l, false) }
			if lost := lostInAnOutage(t, 0.6, begin, end); lost != 0 {
				t.Errorf("of six tenths of a lease: %d lost", lost)
			}
			if lost := lostInAnOutage(t, 0.67, begin, end); lost == 0 {
				t.Error("of two thirds of a lease: none lost")
			}
			if lost := lostInAnOutage(t, 1, begin, end); lost != 60 {
				t.Errorf("of a lease: only %d lost", lost)
			}
		})
	}
}

// A dead holder costs the others between two thirds of a lease and all of it.
func TestADeadHolder(t *testing.T) {
	for second := range 30 {
		synctest.Test(t, func(t *testing.T) {
			store := membackend.New()
			way := lineTo(store)
			h, err := replicaOn(t, way).Locker("lock:report").Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(dlock.DefaultLease + time.Duration(second)*time.Second)
			way.silent.Store(true)
			died := time.Now()
			next := replicaOn(t, store).Locker("lock:report")
			next.Lock()
			if waited := time.Since(died); waited < dlock.DefaultLease*2/3-time.Second ||
				waited > dlock.DefaultLease+time.Millisecond {
				t.Errorf("dead %d s after a lease: another waited for %v", second, waited)
			}
			next.Unlock()
			way.silent.Store(false)
			h.Release(t.Context())
		})
	}
}

package recipes

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// unanswered is what a recorder has for a request that got no answer.
const unanswered = -1

// ask sends a request for an order to a handler.
func ask(ctx context.Context, handler http.HandlerFunc) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/42/ship", nil)
	r.SetPathValue("id", "42")
	w := httptest.NewRecorder()
	w.Code = unanswered
	handler(w, r)
	return w
}

// shopOn returns a shop whose orders are shipped in a second.
func shopOn(locks *dlock.Client) *shop {
	return &shop{locks, func(ctx context.Context, _ string) error {
		return sleep(ctx, time.Second)
	}}
}

func TestAHandlerThatWaitsForAsLongAsItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		s, elsewhere := shopOn(replicaOn(t, store)), replicaOn(t, store).Locker("lock:orders:42")
		elsewhere.Lock()
		var answered atomic.Int32
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { ask(t.Context(), s.shipWrong); answered.Add(1) })
		}
		time.Sleep(time.Hour)
		if n := answered.Load(); n != 0 {
			t.Errorf("%d of 100 were answered while another had the lock", n)
		}
		elsewhere.Unlock()
		all.Wait()
	})
}

func TestAHandlerToWhichAllErrorsAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		way := lineTo(store)
		s, elsewhere := shopOn(replicaOn(t, way)), replicaOn(t, store).Locker("lock:orders:42")
		elsewhere.Lock()
		for _, down := range []bool{false, true} {
			way.down.Store(down)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if w := ask(ctx, s.shipWrong); w.Code != http.StatusInternalServerError {
				t.Errorf("the store down: %v; status %d", down, w.Code)
			}
			cancel()
		}
		elsewhere.Unlock()
	})
}

func TestAHandlerThatSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		// the situation when the request comes
		before func(s *shop, way *line, elsewhere *dlock.Locker)
		status int
		after  string
	}{
		"free": {func(*shop, *line, *dlock.Locker) {}, http.StatusNoContent, ""},
		"held": {func(_ *shop, _ *line, elsewhere *dlock.Locker) {
			elsewhere.Lock()
		}, http.StatusLocked, "1"},
		"down": {
			func(_ *shop, way *line, _ *dlock.Locker) { way.down.Store(true) },
			http.StatusServiceUnavailable, "10",
		},
		"silent": {
			func(_ *shop, way *line, _ *dlock.Locker) { way.silent.Store(true) },
			http.StatusServiceUnavailable, "10",
		},
		"closed": {
			func(s *shop, _ *line, _ *dlock.Locker) { s.locks.Close() },
			http.StatusServiceUnavailable, "10",
		},
		"shipped before": {func(s *shop, _ *line, _ *dlock.Locker) {
			s.ship = func(context.Context, string) error { return errShipped }
		}, http.StatusConflict, ""},
		"broken": {func(s *shop, _ *line, _ *dlock.Locker) {
			s.ship = func(context.Context, string) error { return errors.New("no such order") }
		}, http.StatusInternalServerError, ""},
		"lost": {func(s *shop, _ *line, _ *dlock.Locker) {
			ship := s.ship
			s.ship = func(ctx context.Context, id string) error {
				if _, err := s.locks.Locker("lock:orders:" + id).ForceUnlock(ctx); err != nil {
					return err
				}
				return ship(ctx, id)
			}
		}, http.StatusInternalServerError, ""},
		"lost, and shipped": {func(s *shop, _ *line, _ *dlock.Locker) {
			s.ship = func(ctx context.Context, id string) error {
				_, err := s.locks.Locker("lock:orders:" + id).ForceUnlock(ctx)
				return err
			}
		}, http.StatusInternalServerError, ""},
		"shipped, and the unlock unanswered": {func(s *shop, way *line, _ *dlock.Locker) {
			s.ship = func(context.Context, string) error { way.down.Store(true); return nil }
		}, http.StatusNoContent, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				way := lineTo(store)
				s := shopOn(replicaOn(t, way))
				c.before(s, way, replicaOn(t, store).Locker("lock:orders:42"))
				began := time.Now()
				w := ask(t.Context(), s.shipOrder)
				if after := w.Header().Get("Retry-After"); w.Code != c.status || after != c.after {
					t.Errorf("status %d, Retry-After %q, want %d, %q", w.Code, after, c.status,
						c.after)
				}
				if took := time.Since(began); took > 6*time.Second {
					// the longest is an unlock that isn't answered
					t.Errorf("answered after %v", took)
				}
			})
		})
	}
}

func TestAHandlerKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := membackend.New()
		s, elsewhere := shopOn(replicaOn(t, store)), replicaOn(t, store).Locker("lock:orders:42")
		elsewhere.Lock()
		began := time.Now()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if w := ask(t.Context(), s.shipOrder); w.Code != http.StatusLocked {
					t.Errorf("status %d", w.Code)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the last was answered after %v", took)
		}
		elsewhere.Unlock()
	})
}

func TestAClientThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := shopOn(replicaOn(t, membackend.New()))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if w := ask(ctx, s.shipOrder); w.Code != unanswered || w.Body.Len() > 0 {
			t.Errorf("answered with %d, %q", w.Code, w.Body)
		}
		if locked, err := s.locks.Locker("lock:orders:42").IsLocked(t.Context()); locked ||
			err != nil {
			t.Errorf("locked: %v, %v", locked, err)
		}
	})
}

package wiretest

import (
	"errors"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Foreign tests steps on hashes. Some hashes are plain locks, but most aren't. A waiter treats a
// hash with an expiry as a lock, unless the hash has a mode field, as read-write locks do. But no
// step may delete a hash that isn't a plain lock.
func Foreign(t *testing.T, p Package, server *testservers.Server) {
	ctx := t.Context()
	client := connect(t, server.Addr)
	c := locks(t, p.Server(t, server.Addr, Options{}))
	for what, data := range map[string]struct {
		hash   []any
		ttl    time.Duration // 0 means no expiry
		locked bool          // TryLock reports that it is held
		freed  bool          // ForceUnlock frees it
	}{
		"a user":               {[]any{"name", "bob"}, 0, false, false},
		"a user of two fields": {[]any{"name", "bob", "visits", "12"}, 0, false, false},
		"a counter":            {[]any{"visits", "12"}, 0, true, false},
		"settings with a mode": {[]any{"mode", "read", "name", "bob"}, 0, false, false},
		"a mode":               {[]any{"mode", "read"}, time.Hour, false, false},
		"a session that ends":  {[]any{"user", "bob"}, time.Hour, true, false},
		"a session of numbers": {
			[]any{"user", "12", "visits", "1"}, time.Hour, true, false,
		},
		"a number that is none": {[]any{"rest", "-1"}, time.Hour, true, false},
		"a zero":                {[]any{"rest", "0"}, time.Hour, true, false},
		"a part of a number":    {[]any{"version", "1.2"}, time.Hour, true, false},
		"settings that end": {
			[]any{"mode", "write", "name", "bob"}, time.Hour, false, false,
		},
		"another mode":      {[]any{"mode", "fast", Bob, "1"}, time.Hour, false, false},
		"a lock":            {[]any{Bob, "1"}, time.Hour, true, true},
		"a lock held often": {[]any{Bob, "120"}, time.Hour, true, true},
		"a read lock": {
			[]any{"mode", "read", Bob, "2", Alice, "1"}, time.Hour, false, false,
		},
		"a write lock": {
			[]any{"mode", "write", Bob + ":write", "1"}, time.Hour, false, false,
		},
		"one who is called mode":       {[]any{"mode", "1"}, time.Hour, true, true},
		"a lock whose expiry was lost": {[]any{Bob, "1"}, 0, true, false},
	} {
		t.Run(what, func(t *testing.T) {
			client.Del(ctx, "n")
			client.HSet(ctx, "n", data.hash...)
			if data.ttl > 0 {
				client.PExpire(ctx, "n", data.ttl)
			}
			before, l := client.Dump(ctx, "n").Val(), c.Locker("n")
			ok, err := l.TryLock(ctx)
			if ok || (err == nil) != data.locked ||
				err != nil && !errors.Is(err, dlock.ErrConflict) {
				t.Errorf("TryLock: %v, %v", ok, err)
			}
			if locked, err := l.IsLocked(ctx); locked != data.locked ||
				(err == nil) != data.locked || err != nil && !errors.Is(err, dlock.ErrConflict) {
				t.Errorf("IsLocked: %v, %v", locked, err)
			}
			freed, err := l.ForceUnlock(ctx)
			if freed != data.freed || (err == nil) != data.freed ||
				err != nil && !errors.Is(err, dlock.ErrConflict) {
				t.Errorf("ForceUnlock: %v, %v", freed, err)
			}
			if left := client.Dump(ctx, "n").Val(); (left == "") != data.freed ||
				left != "" && left != before {
				t.Errorf("left: %v", client.HGetAll(ctx, "n").Val())
			}
		})
	}
}

// ForeignAfterRenewal tests a session that recently held a plain lock. The last renewal was for a
// shorter time than the acquisition, and the lock has expired. If another kind of lock has the key
// by then, the session must report that.
func ForeignAfterRenewal(t *testing.T, p Package, server *testservers.Server) {
	ctx, client := t.Context(), connect(t, server.Addr)
	req := Renew(Alice)
	req.Lease = time.Millisecond
	for what, renew := range map[string]func(s Session){
		"alone": func(s Session) { Must[backend.RenewResult](t)(s.Renew(ctx, req)) },
		"in a batch": func(s Session) {
			s.RenewBatch(ctx, []backend.RenewRequest{req}, func(int, backend.RenewResult, error) {})
		},
	} {
		s := open(t, p.Server(t, server.Addr, Options{}))
		Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
		renew(s)
		testservers.Until(t, "the lock has expired", func() bool {
			return client.Exists(ctx, "n").Val() == 0
		})
		client.HSet(ctx, "n", "mode", "read", Alice, "1")
		client.PExpire(ctx, "n", time.Hour)
		if res, err := s.Acquire(ctx, Acquire(Bob)); !errors.Is(err, backend.ErrConflict) {
			t.Errorf("renewed %s: %+v, %v", what, res, err)
		}
		client.Del(ctx, "n")
	}
}

// FullMemory tests a server that is out of memory and refuses all commands that might need memory.
// Renewals and releases must still work, but no lock may be granted.
func FullMemory(t *testing.T, p Package, server *testservers.Server) {
	ctx := t.Context()
	for name, o := range map[string]Options{"plain": {}, "sharded": sharded} {
		t.Run(name, func(t *testing.T) {
			full := func(yes bool) {
				t.Helper()
				limit := "0"
				if yes {
					limit = "1mb"
				}
				server.Do("CONFIG", "SET", "maxmemory", limit)
			}
			full(false)
			s, client := open(t, p.Server(t, server.Addr, o)), connect(t, server.Addr)
			l := Subscribe(t, open(t, p.Server(t, server.Addr, o)), "n")
			Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
			Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
			full(true)
			_, err := s.Acquire(ctx, Acquire(Alice))
			WantKind(t, err, backend.Retry)
			if res := Must[backend.RenewResult](t)(s.Renew(ctx, Renew(Alice))); !res.Held {
				t.Error("renewed: not held")
			}
			req := Release(Alice)
			for _, want := range []backend.ReleaseOutcome{backend.Left, backend.Freed,
				backend.NotHeld} {
				if res := Must[backend.ReleaseResult](t)(s.Release(ctx, req)); res.Outcome != want {
					t.Errorf("release: %v, want %v", res.Outcome, want)
				}
				if want == backend.Left {
					WantHash(t, client, "n", map[string]string{Alice: "1"}, Lease)
				}
				req.AskWaiting = !req.AskWaiting
			}
			if !l.Wait() {
				t.Error("it woke all")
			}

			for _, kind := range []backend.Kind{backend.Fenced, backend.Read, backend.Write} {
				full(false)
				Must[string](t)(acquires(kind, Alice)(ctx, s))
				if kind != backend.Read {
					Must[string](t)(acquires(kind, Alice)(ctx, s))
				}
				full(true)
				if kind == backend.Read { // with enough memory, Bob could read, too
					_, err := acquires(kind, Bob)(ctx, s)
					WantKind(t, err, backend.Retry)
				}
				for _, step := range []taken{renews(kind, Alice), renewsInBatch(kind, Alice)} {
					if said := Must[string](t)(step(ctx, s)); said != "true" {
						t.Errorf("%v: renewed: %s", kind, said)
					}
				}
				for _, want := range []string{"holds left", "freed", "not held"} {
					if kind == backend.Read && want == "holds left" {
						continue // a Read counts one hold
					}
					if said := Must[string](t)(releases(kind, Alice)(ctx, s)); said != want {
						t.Errorf("%v: release: %s, want %s", kind, said, want)
					}
				}
				full(false)
				Must[string](t)(acquires(kind, Alice)(ctx, s))
				full(true)
				if said := Must[string](t)(forces(kind)(ctx, s)); said != "true" {
					t.Errorf("%v: a forced release: %s", kind, said)
				}
			}

			full(false)
			Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
			full(true)
			if res := Must[backend.ForceReleaseResult](t)(
				s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"})); !res.Released {
				t.Error("a forced release released nothing")
			}
		})
	}
}

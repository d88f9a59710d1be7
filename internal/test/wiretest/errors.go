package wiretest

import (
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// ServerErrors tests what a step reports if the server answers with an error: whether the step may
// have been carried out, and whether it can be repeated.
func ServerErrors(t *testing.T, p Package, server *testservers.Server) {
	ctx := t.Context()
	admin := connect(t, server.Addr)
	all := open(t, p.Server(t, server.Addr, Options{}))
	allow := func(user string, rules ...string) Session {
		t.Helper()
		args := append([]string{"ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all"},
			rules...)
		server.Do(args...)
		return open(t, p.Server(t, server.Addr, Options{User: user}))
	}
	hold := func() {
		admin.FlushAll(ctx)
		Must[backend.AcquireResult](t)(all.Acquire(ctx, Acquire(Alice)))
	}

	t.Run("no permission for scripts", func(t *testing.T) {
		s := allow("a", "-evalsha", "-eval")
		hold()
		for _, step := range Steps[:5] {
			WantKind(t, step.Run(ctx, s), backend.Refused)
		}
		WantHash(t, admin, "n", map[string]string{Alice: "1"}, Lease)
	})
	t.Run("no permission for the key", func(t *testing.T) {
		s := allow("b", "resetkeys", "~other")
		hold()
		for _, step := range Steps {
			WantKind(t, step.Run(ctx, s), backend.Refused)
		}
		WantHash(t, admin, "n", map[string]string{Alice: "1"}, Lease)
	})
	t.Run("no permission for the channel as a key", func(t *testing.T) {
		s := allow("c", "resetkeys", "~n")
		admin.FlushAll(ctx)
		for range 2 {
			Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
		}
		for i, want := range []backend.ReleaseOutcome{backend.Left, backend.Freed,
			backend.NotHeld} {
			ask := Release(Alice)
			ask.AskWaiting = i == 1
			if res, err := s.Release(ctx, ask); res.Outcome != want || err != nil {
				t.Errorf("release %d: %v, %v; want %v", i, res.Outcome, err, want)
			}
		}
		WantHash(t, admin, "n", map[string]string{}, -2) // it is free, and nobody was told
	})
	t.Run("no permission to publish", func(t *testing.T) {
		s := allow("d", "resetchannels")
		hold()
		_, err := s.Release(ctx, Release(Alice))
		WantKind(t, err, backend.Unknown)
		WantHash(t, admin, "n", map[string]string{}, -2) // it is free, although
	})
	t.Run("no permission inside the script", func(t *testing.T) {
		s := allow("e", "-pexpire")
		for range 2 {
			admin.FlushAll(ctx)
			_, err := s.Acquire(ctx, Acquire(Alice))
			WantKind(t, err, backend.Unknown)
			WantHash(t, admin, "n", map[string]string{Alice: "1"}, -1) // it is locked, although
			admin.FlushAll(ctx)
			_, err = s.Acquire(ctx, Acquire(Alice))
			WantKind(t, err, backend.Refused)
			WantHash(t, admin, "n", map[string]string{}, -2) // it wasn't sent
		}
		server.Do("ACL", "SETUSER", "e", "+pexpire")
		Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
	})
	t.Run("no permission to count", func(t *testing.T) {
		s := allow("f", "-hget")
		hold()
		_, err := s.Acquire(ctx, Reenter(Alice))
		WantKind(t, err, backend.Unknown)
		WantHash(t, admin, "n", map[string]string{Alice: "2"}, Lease)
	})
	t.Run("no memory", func(t *testing.T) {
		admin.FlushAll(ctx)
		admin.ConfigSet(ctx, "maxmemory", "1")
		defer admin.ConfigSet(ctx, "maxmemory", "0")
		_, err := all.Acquire(ctx, Acquire(Alice))
		WantKind(t, err, backend.Retry)
		WantHash(t, admin, "n", map[string]string{}, -2)
	})
	t.Run("no replicas", func(t *testing.T) {
		hold()
		admin.ConfigSet(ctx, "min-replicas-to-write", "1")
		defer admin.ConfigSet(ctx, "min-replicas-to-write", "0")
		for _, step := range Steps[:Writing] {
			WantKind(t, step.Run(ctx, all), backend.Retry)
		}
		WantHash(t, admin, "n", map[string]string{Alice: "1"}, Lease)
	})
	t.Run("replica", func(t *testing.T) {
		hold()
		server.Do("REPLICAOF", "127.0.0.1", "1")
		defer server.Do("REPLICAOF", "NO", "ONE")
		for _, step := range Steps[:Writing] {
			WantKind(t, step.Run(ctx, all), backend.Retry)
		}
		WantHash(t, admin, "n", map[string]string{Alice: "1"}, Lease)
	})
}

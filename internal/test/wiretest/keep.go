package wiretest

import (
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// Keep tests releases with Keep set: their commands, and the keys that they leave behind. A user
// with the permissions for a plain lock can keep the lock taken. Look also needs HKEYS, to report
// that the lock is kept. Without HKEYS, only Look fails.
func Keep(t *testing.T, p Package, server *testservers.Server) {
	ctx := t.Context()
	const channel, keep = "redisson_lock__channel:{n}", time.Minute
	client := connect(t, server.Addr)
	plain := open(t, p.Server(t, server.Addr, Options{}))
	release := Release(Alice)
	release.Keep, release.AskWaiting = keep, true
	releases := func(s Session, want backend.ReleaseOutcome) {
		t.Helper()
		if res := Must[backend.ReleaseResult](t)(
			s.Release(ctx, release)); res != (backend.ReleaseResult{Outcome: want}) {
			t.Errorf("release with Keep: %+v, want %v", res, want)
		}
	}

	releases(plain, backend.NotHeld) // makes the script known to the server
	Must[backend.AcquireResult](t)(plain.Acquire(ctx, Acquire(Alice)))
	m := Watch(t, server.Addr)
	for range 2 {
		releases(plain, backend.Kept)
		wantCommands(t, m, `"EVALSHA" "SHA" "2" "n" `+Quoted(channel, 30000, Alice, 60000, 2))
		WantHash(t, client, "n", map[string]string{Alice + "-kept": "1"}, keep)
		m.Commands()
	}

	messages := listen(t, client, "redisson_lock__channel:{lock:n}")
	for _, less := range []string{"", "-hkeys"} { // Look needs HKEYS to see that a lock is kept
		server.Do("ACL", "SETUSER", "keeps"+less, "on", ">secret", "~lock:*",
			"~redisson_lock__channel:*", "resetchannels", "&redisson_lock__channel:*",
			"-@all", "+eval", "+evalsha", "+exists", "+hexists", "+hincrby", "+hget", "+hkeys",
			"+hlen", "+hvals", "+pexpire", "+pttl", "+del",
			"+publish", "+subscribe", "+unsubscribe", "+ping", "+pubsub", "+hello", "+client")
		if less != "" {
			server.Do("ACL", "SETUSER", "keeps"+less, less)
		}
		s := open(t, p.Server(t, server.Addr, Options{User: "keeps" + less, Prefix: "lock:"}))
		Must[backend.AcquireResult](t)(s.Acquire(ctx, Acquire(Alice)))
		Must[backend.AcquireResult](t)(s.Acquire(ctx, Reenter(Alice)))
		releases(s, backend.Left)
		releases(s, backend.Kept)
		// this message is for subscribers that watch the lock
		wantMessage(t, messages, "redisson_lock__channel:{lock:n}", "2")
		releases(s, backend.Kept)
		for _, owner := range []string{"", Alice, Bob} {
			res, err := s.Look(ctx, backend.LookRequest{Name: "n", Owner: owner})
			if less != "" {
				WantKind(t, err, backend.Refused)
			} else if err != nil || !res.Held || res.Count != 0 || !res.Kept {
				t.Errorf("looked at by %q: %+v, %v", owner, res, err)
			}
		}
		Must[backend.ForceReleaseResult](t)(
			s.ForceRelease(ctx, backend.ForceReleaseRequest{Name: "n"}))
		// this is the first message after the "2"
		wantMessage(t, messages, "redisson_lock__channel:{lock:n}", "0")
		releases(s, backend.NotHeld)
	}
}

// keepsAndForces tests a release with Keep and a forced release, for a user with only the
// documented permissions.
func keepsAndForces(t *testing.T, s Session, kind backend.Kind) {
	t.Helper()
	Must[string](t)(acquires(kind, Alice)(t.Context(), s))
	req := Release(Alice)
	req.Kind, req.Keep = kind, time.Minute
	req.Permits, _ = numbers(kind)
	for range 2 {
		if res := Must[backend.ReleaseResult](t)(
			s.Release(t.Context(), req)); res.Outcome != backend.Kept {
			t.Errorf("%v: release with Keep: %v", kind, res.Outcome)
		}
	}
	Must[string](t)(acquires(kind, Alice)(t.Context(), s))
	Must[string](t)(looks(kind, Bob)(t.Context(), s))
	if said := Must[string](t)(forces(kind)(t.Context(), s)); said != "true" {
		t.Errorf("%v: what was kept is forced: %s", kind, said)
	}
}

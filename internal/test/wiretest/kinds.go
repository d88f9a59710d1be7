package wiretest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// allKinds lists all kinds of locks except Fair.
var allKinds = []backend.Kind{
	backend.Exclusive, backend.Fenced, backend.Read, backend.Write, backend.Permits,
}

// These are the keys and fields of the read-write lock "n" for the owners Alice and Bob. They
// contain the owner strings with a zero before the number at the end.
const (
	lockChannel  = "redisson_lock__channel:{n}"
	tokenKey     = "redisson_lock_token:{n}"
	rwChannel    = "redisson_rwlock:{n}"
	notesKey     = "distsync_rwlock_notes:{n}"
	aliceInside  = "11111111-1111-1111-1111-111111111111:01"
	bobInside    = "22222222-2222-2222-2222-222222222222:07"
	aliceReads   = "{n}:" + aliceInside + ":rwlock_timeout:1"
	bobReads     = "{n}:" + bobInside + ":rwlock_timeout:1"
	aliceWrites  = aliceInside + ":write"
	bobWrites    = bobInside + ":write"
	waitedMicros = 1_000_000
	placeMicros  = 3_000_000
)

// taken is a step on the lock "n" that returns its result as text.
type taken func(ctx context.Context, s Session) (string, error)

// refusesBraces checks that each step refuses a lock of the given kind if the name is {n}, and
// sends nothing.
func refusesBraces(t *testing.T, p Package, server *testservers.Server, kind backend.Kind) {
	ctx := t.Context()
	s := open(t, p.Server(t, server.Addr, Options{}))
	acquire, release, renew := Acquire(Alice), Release(Alice), Renew(Alice)
	acquire.Name, acquire.Kind = "{n}", kind
	release.Name, release.Kind = "{n}", kind
	renew.Name, renew.Kind = "{n}", kind
	acquire.Permits, acquire.Limit = numbers(kind)
	release.Permits, renew.Permits = acquire.Permits, acquire.Permits
	steps := map[string]func() error{
		"acquire": func() error { _, err := s.Acquire(ctx, acquire); return err },
		"release": func() error { _, err := s.Release(ctx, release); return err },
		"renew":   func() error { _, err := s.Renew(ctx, renew); return err },
		"renew in a batch": func() (err error) {
			s.RenewBatch(ctx, []backend.RenewRequest{renew},
				func(_ int, _ backend.RenewResult, e error) { err = e })
			return err
		},
		"look": func() error {
			_, err := s.Look(ctx, backend.LookRequest{Kind: kind, Name: "{n}", Owner: Alice,
				Permits: acquire.Permits, Limit: acquire.Limit})
			return err
		},
		"force": func() error {
			_, err := s.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: kind, Name: "{n}"})
			return err
		},
		"subscribe": func() error {
			_, err := s.Subscribe(ctx, backend.SubscribeRequest{Kind: kind, Name: "{n}",
				Wake: func(backend.Wakeup) {}})
			return err
		},
	}
	if kind == backend.Fair {
		steps["keep places"] = func() error {
			_, err := s.(backend.Liner).KeepPlaces(ctx, backend.PlacesRequest{Kind: kind,
				Name: "{n}", Owners: []string{Alice}, Place: place})
			return err
		}
	}
	m := Watch(t, server.Addr)
	for what, step := range steps {
		if err := step(); !IsKind(err, backend.Refused) ||
			!strings.Contains(fmt.Sprint(err), `would have the same key as that of "n"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := m.Commands(); len(got) > 0 {
		t.Errorf("sent %q", got)
	}
	acquire.Name = "{n}:x"
	if res := Must[backend.AcquireResult](t)(s.Acquire(ctx, acquire)); !res.Acquired {
		t.Error("{n}:x isn't acquired")
	}
	release.Name = acquire.Name
	Must[backend.ReleaseResult](t)(s.Release(ctx, release))
	server.Do("DEL", acquire.Name)
}

func acquires(kind backend.Kind, owner string, again ...bool) taken {
	return func(ctx context.Context, s Session) (string, error) {
		req := Acquire(owner)
		req.Kind, req.Reentry = kind, len(again) > 0
		req.Permits, req.Limit = numbers(kind)
		res, err := s.Acquire(ctx, req)
		switch {
		case !res.Acquired && res.Remaining > 0:
			return "held", err
		case kind == backend.Fenced && res.Token == 0:
			return "no token", err
		default:
			return fmt.Sprint("acquired ", res.Count), err
		}
	}
}

// waits returns a step that asks for a write lock. If the lock is refused, the step leaves a note
// that a writer is waiting.
func waits(owner string) taken {
	return func(ctx context.Context, s Session) (string, error) {
		req := Acquire(owner)
		req.Kind, req.Waited, req.Place = backend.Write, waitedMicros*time.Microsecond,
			placeMicros*time.Microsecond
		res, err := s.Acquire(ctx, req)
		if res.Acquired {
			return "acquired", err
		}
		return "held", err
	}
}

func releases(kind backend.Kind, owner string) taken {
	return func(ctx context.Context, s Session) (string, error) {
		req := Release(owner)
		req.Kind = kind
		req.Permits, _ = numbers(kind)
		res, err := s.Release(ctx, req)
		return res.Outcome.String(), err
	}
}

func renews(kind backend.Kind, owner string) taken {
	return func(ctx context.Context, s Session) (string, error) {
		req := Renew(owner)
		req.Kind = kind
		req.Permits, _ = numbers(kind)
		res, err := s.Renew(ctx, req)
		return fmt.Sprint(res.Held), err
	}
}

func renewsInBatch(kind backend.Kind, owner string) taken {
	return func(ctx context.Context, s Session) (said string, err error) {
		req := Renew(owner)
		req.Kind = kind
		req.Permits, _ = numbers(kind)
		s.RenewBatch(ctx, []backend.RenewRequest{req}, func(
			_ int, res backend.RenewResult, e error,
		) {
			said, err = fmt.Sprint(res.Held), e
		})
		return said, err
	}
}

func looks(kind backend.Kind, owner string) taken {
	return func(ctx context.Context, s Session) (string, error) {
		permits, limit := numbers(kind)
		res, err := s.Look(ctx, backend.LookRequest{
			Kind: kind, Name: "n", Owner: owner, Permits: permits, Limit: limit,
		})
		return fmt.Sprint(res.Held, " ", res.Count), err
	}
}

func forces(kind backend.Kind) taken {
	return func(ctx context.Context, s Session) (string, error) {
		res, err := s.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: kind, Name: "n"})
		return fmt.Sprint(res.Released), err
	}
}

// wired is a step with its expected result, and the arguments that it sends after the script's
// hash. If the script publishes a message, KEYS[2] is the channel.
type wired struct {
	what    string
	step    taken
	want    string
	sends   []any
	message string
}

func (w wired) take(t *testing.T, s Session) {
	t.Helper()
	if said, err := w.step(t.Context(), s); err != nil || said != w.want {
		t.Fatalf("%s: %s, %v; want %s", w.what, said, err, w.want)
	}
}

var rwOnWire = []wired{
	{"write", acquires(backend.Write, Alice), "acquired 1",
		[]any{2, "n", notesKey, 30000, aliceWrites, 0, 0}, ""},
	{"write again", acquires(backend.Write, Alice, true), "acquired 2",
		[]any{2, "n", notesKey, 30000, aliceWrites, 0, 0}, ""},
	{"read under it", acquires(backend.Read, Alice), "acquired 1",
		[]any{3, "n", aliceReads, notesKey, 30000, aliceInside, aliceWrites, 0}, ""},
	{"another's read", acquires(backend.Read, Bob), "held",
		[]any{3, "n", bobReads, notesKey, 30000, bobInside, bobWrites, 0}, ""},
	{"another's write", acquires(backend.Write, Bob), "held",
		[]any{2, "n", notesKey, 30000, bobWrites, 0, 0}, ""},
	{"another waits", waits(Bob), "held",
		[]any{2, "n", notesKey, 30000, bobWrites, waitedMicros, placeMicros}, ""},
	{"renew a write", renews(backend.Write, Alice), "true", []any{1, "n", 30000, aliceWrites}, ""},
	{"renew a read", renews(backend.Read, Alice), "true",
		[]any{2, "n", aliceReads, 30000, aliceInside}, ""},
	{"renew a write in a batch", renewsInBatch(backend.Write, Alice), "true",
		[]any{1, "n", 30000, aliceWrites}, ""},
	{"renew a read in a batch", renewsInBatch(backend.Read, Alice), "true",
		[]any{2, "n", aliceReads, 30000, aliceInside}, ""},
	{"renew another's write", renews(backend.Write, Bob), "false", []any{1, "n", 30000, bobWrites},
		""},
	{"renew another's read in a batch", renewsInBatch(backend.Read, Bob), "false",
		[]any{2, "n", bobReads, 30000, bobInside}, ""},
	{"release one of two writes", releases(backend.Write, Alice), "holds left",
		[]any{3, "n", rwChannel, notesKey, 1, 30000, aliceWrites}, ""},
	{"release the last, and go on reading", releases(backend.Write, Alice), "freed",
		[]any{3, "n", rwChannel, notesKey, 1, 30000, aliceWrites}, "1"},
	{"release no write", releases(backend.Write, Alice), "not held",
		[]any{3, "n", rwChannel, notesKey, 1, 30000, aliceWrites}, ""},
	{"release the last read", releases(backend.Read, Alice), "freed",
		[]any{3, "n", rwChannel, aliceReads, 0, aliceInside}, "0"},
	{"release no read", releases(backend.Read, Alice), "not held",
		[]any{3, "n", rwChannel, aliceReads, 0, aliceInside}, ""},
	{"read while another waits", acquires(backend.Read, Alice), "held",
		[]any{3, "n", aliceReads, notesKey, 30000, aliceInside, aliceWrites, 0}, ""},
	{"the other gives up", releases(backend.Write, Bob), "not held",
		[]any{3, "n", rwChannel, notesKey, 1, 30000, bobWrites}, "1"},
	{"read", acquires(backend.Read, Alice), "acquired 1",
		[]any{3, "n", aliceReads, notesKey, 30000, aliceInside, aliceWrites, 0}, ""},
	{"read again", acquires(backend.Read, Alice, true), "acquired 1",
		[]any{3, "n", aliceReads, notesKey, 30000, aliceInside, aliceWrites, 0}, ""},
	{"another reads, too", acquires(backend.Read, Bob), "acquired 1",
		[]any{3, "n", bobReads, notesKey, 30000, bobInside, bobWrites, 0}, ""},
	{"release one of two reads", releases(backend.Read, Alice), "freed",
		[]any{3, "n", rwChannel, aliceReads, 0, aliceInside}, ""},
	{"force a write while others read", forces(backend.Write), "false",
		[]any{2, "n", rwChannel, 1, "write"}, ""},
	{"force reads", forces(backend.Read), "true", []any{2, "n", rwChannel, 0, "read"}, "0"},
	{"write again, later", acquires(backend.Write, Alice), "acquired 1",
		[]any{2, "n", notesKey, 30000, aliceWrites, 0, 0}, ""},
	{"force reads while one writes", forces(backend.Read), "false",
		[]any{2, "n", rwChannel, 0, "read"}, ""},
	{"force a write", forces(backend.Write), "true", []any{2, "n", rwChannel, 1, "write"}, "1"},
}

var fencedOnWire = []wired{
	{"fenced", acquires(backend.Fenced, Alice), "acquired 1", []any{2, "n", tokenKey, 30000, Alice},
		""},
	{"fenced, again", acquires(backend.Fenced, Alice, true), "acquired 2",
		[]any{2, "n", tokenKey, 30000, Alice}, ""},
	{"fenced, another", acquires(backend.Fenced, Bob), "held", []any{2, "n", tokenKey, 30000, Bob},
		""},
	{"renew a fenced one", renews(backend.Fenced, Alice), "true", []any{1, "n", 30000, Alice}, ""},
	{"release one of two fenced ones", releases(backend.Fenced, Alice), "holds left",
		[]any{2, "n", lockChannel, 0, 30000, Alice}, ""},
	{"release the last fenced one", releases(backend.Fenced, Alice), "freed",
		[]any{2, "n", lockChannel, 0, 30000, Alice}, "0"},
	{"fenced, later", acquires(backend.Fenced, Bob), "acquired 1",
		[]any{2, "n", tokenKey, 30000, Bob}, ""},
	{"force a fenced one", forces(backend.Fenced), "true", []any{2, "n", lockChannel, 0}, "0"},
}

var kindsOnWire = slices.Concat(rwOnWire, fencedOnWire)

// Kinds tests the kinds of locks other than the plain one. Each step must be one script, with the
// right keys and arguments, and each release must publish the right message.
func Kinds(t *testing.T, p Package, server *testservers.Server) {
	s, client := open(t, p.Server(t, server.Addr, Options{})), connect(t, server.Addr)
	t.Run("the server doesn't know the scripts", func(t *testing.T) {
		m := Watch(t, server.Addr)
		for _, c := range kindsOnWire {
			server.Do("SCRIPT", "FLUSH")
			m.All()
			c.take(t, s)
			wantScriptCall(t, m.Commands(), c.sends...)
		}
	})
	for _, c := range kindsOnWire {
		c.take(t, s)
	}
	t.Run("it knows them", func(t *testing.T) {
		m := Watch(t, server.Addr)
		messages := listen(t, client, rwChannel)
		if err := messages.Subscribe(t.Context(), lockChannel); err != nil {
			t.Fatal(err)
		}
		Must[any](t)(messages.Receive(t.Context()))
		m.All()
		for _, c := range kindsOnWire {
			c.take(t, s)
			wantCommands(t, m, `"EVALSHA" "SHA" `+Quoted(c.sends...))
			if c.message != "" {
				wantMessage(t, messages, fmt.Sprint(c.sends[2]), c.message)
			}
		}
		// Nothing else was published, and only the key of the token is left.
		client.Publish(t.Context(), rwChannel, "the end")
		wantMessage(t, messages, rwChannel, "the end")
		if got := client.Keys(t.Context(), "*").Val(); fmt.Sprint(got) != "["+tokenKey+"]" {
			t.Errorf("keys %q are left", got)
		}
	})

	t.Run("look", func(t *testing.T) {
		m := Watch(t, server.Addr)
		for _, c := range []struct {
			before, look taken
			want         string
		}{
			{acquires(backend.Write, Alice), looks(backend.Write, Alice), "true 1"},
			{nil, looks(backend.Write, Bob), "true 0"},
			{nil, looks(backend.Read, Alice), "false 0"},
			{acquires(backend.Read, Alice), looks(backend.Read, Alice), "true 1"},
			{nil, looks(backend.Read, ""), "true 0"},
			{forces(backend.Write), looks(backend.Write, Alice), "false 0"},
			{acquires(backend.Fenced, Alice), looks(backend.Fenced, Alice), "true 1"},
			{forces(backend.Fenced), looks(backend.Fenced, Alice), "false 0"},
		} {
			if c.before != nil {
				Must[string](t)(c.before(t.Context(), s))
			}
			m.All()
			if said := Must[string](t)(c.look(t.Context(), s)); said != c.want {
				t.Errorf("looked at: %s, want %s", said, c.want)
			}
			got := m.Commands()
			if len(got) != 1 &&
				!slices.Equal(got, []string{Quoted("EXISTS", "n"), Quoted("HGET", "n", Alice),
					Quoted("PTTL", "n")}) {
				t.Errorf("it was looked at with %q", got)
			}
		}
	})

	t.Run("from a lock to its unlock", func(t *testing.T) {
		c := locks(t, p.Server(t, server.Addr, Options{}))
		rw, fenced := c.RWLocker("n"), c.FencedLocker("another")
		inside := 0
		for name, l := range map[string]sync.Locker{
			"read":   rw.RLocker(),
			"write":  rw,
			"fenced": fenced,
		} {
			pair := func() {
				l.Lock()
				inside++
				l.Unlock()
			}
			pair() // makes the scripts known to the server
			m := Watch(t, server.Addr)
			pair()
			if got := m.Commands(); len(got) != 2 || !strings.HasPrefix(got[0], `"EVALSHA"`) ||
				!strings.HasPrefix(got[1], `"EVALSHA"`) {
				t.Errorf("%s: %q", name, got)
			}
		}
	})

	t.Run("who waits", func(t *testing.T) {
		other := open(t, p.Server(t, server.Addr, Options{}))
		for _, kind := range []backend.Kind{backend.Fenced, backend.Read, backend.Write} {
			own, others := SubscribeTo(t, s, kind, "n"), SubscribeTo(t, other, kind, "n")
			Must[string](t)(acquires(kind, Alice)(t.Context(), s))
			req := Release(Alice)
			req.Kind, req.AskWaiting = kind, true
			res := Must[backend.ReleaseResult](t)(s.Release(t.Context(), req))
			res.Strangers = 0 // these owner strings look like Redisson's
			if want := (backend.ReleaseResult{
				Outcome: backend.Freed, Counted: true, Waiting: 1,
			}); res != want {
				t.Errorf("%v: %+v, want %+v", kind, res, want)
			}
			for _, l := range []*Listener{own, others} {
				l.Wait()
				l.Sub.Close()
			}
			// Until the session knows that its own subscription has ended, it can't tell whether
			// the server's count of subscribers includes that subscription.
			testservers.Until(t, "nobody listens", func() bool {
				return len(connect(t, server.Addr).PubSubChannels(t.Context(), "*").Val()) == 0
			})
		}
	})

	t.Run("an unknown kind", func(t *testing.T) {
		const unknown = backend.Kind(77)
		for what, step := range map[string]taken{
			"acquire": acquires(unknown, Alice), "release": releases(unknown, Alice),
			"renew":            renews(unknown, Alice),
			"renew in a batch": renewsInBatch(unknown, Alice), "look": looks(unknown, Alice),
			"force-release": forces(unknown),
			"subscribe": func(ctx context.Context, s Session) (string, error) {
				_, err := s.Subscribe(ctx, backend.SubscribeRequest{Kind: unknown, Name: "n"})
				return "", err
			},
		} {
			_, err := step(t.Context(), s)
			WantKind(t, err, backend.Refused)
			if !errors.Is(err, errors.ErrUnsupported) ||
				!strings.Contains(fmt.Sprint(err), "kind 77") {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// KindsPermitted tests that users of each family of kinds need only the documented permissions.
func KindsPermitted(t *testing.T, p Package, server *testservers.Server) {
	least := []string{"on", ">secret", "resetchannels", "-@all", "+hello", "+client", "+ping",
		"+subscribe", "+unsubscribe", "+pubsub",
		"+eval", "+evalsha", "+exists", "+hexists", "+hincrby", "+hget", "+hkeys", "+hlen",
		"+hvals", "+pexpire", "+pttl", "+del", "+publish"}
	for name, c := range map[string]struct {
		keys, channel string
		commands      []string
		course        []wired
		kinds         []backend.Kind
	}{
		"fenced": {"~redisson_lock_token:*", "redisson_lock__channel:*",
			[]string{"+hmget", "+get", "+set", "+incr", "+persist", "+time"}, fencedOnWire,
			[]backend.Kind{backend.Fenced}},
		"readwrite": {"~distsync_rwlock_notes:* ~{lock:*}:*:rwlock_timeout:*", "redisson_rwlock:*",
			[]string{"+hmget", "+hset", "+hdel", "+hgetall", "+get", "+set", "+time"}, rwOnWire,
			[]backend.Kind{backend.Read, backend.Write}},
		"permits": {"~{lock:*}:timeout", "redisson_sc:*",
			[]string{
				"+get", "+set", "+incrby", "+persist", "+time", "+zadd", "+zcard", "+zcount",
				"+zrange", "+zrem", "+zremrangebyscore", "+zscore",
			},
			permitsOnWire, []backend.Kind{backend.Permits}},
	} {
		t.Run(name, func(t *testing.T) {
			words := slices.Concat([]string{"ACL", "SETUSER", name}, least, c.commands,
				strings.Fields(c.keys),
				[]string{"~lock:*", "~" + c.channel, "&" + c.channel})
			server.Do(words...)
			s := open(t, p.Server(t, server.Addr, Options{User: name, Prefix: "lock:"}))
			for range 2 {
				for _, w := range c.course {
					w.take(t, s)
				}
				server.Do("DEL", "lock:n") // removes the limit
			}
			for _, kind := range c.kinds {
				SubscribeTo(t, s, kind, "n").Sub.Close()
				for _, owner := range []string{"", Alice} {
					Must[string](t)(looks(kind, owner)(t.Context(), s))
				}
				if kind != backend.Read {
					keepsAndForces(t, s, kind)
				}
			}
			server.Do("DEL", "lock:n")
			connect(t, server.Addr).HSet(t.Context(), "lock:user", "name", "bob")
			for _, kind := range c.kinds {
				_, err := s.Acquire(t.Context(), backend.AcquireRequest{
					Kind: kind, Name: "user", Owner: Alice, Lease: Lease,
				})
				if !IsKind(err, backend.Refused) || !errors.Is(err, backend.ErrConflict) {
					t.Errorf("%v: %v", kind, err)
				}
			}
		})
	}
}

// KindsConflict tests that a name belongs to one family of kinds. Steps of another family return
// [backend.ErrConflict] at once and leave the name untouched.
func KindsConflict(t *testing.T, p Package, server *testservers.Server) {
	client := connect(t, server.Addr)
	other := open(t, p.Server(t, server.Addr, Options{}))
	holders := map[string]struct {
		hold     []taken
		families [][]backend.Kind // families that conflict with it
	}{
		"plain": {
			[]taken{acquires(backend.Exclusive, Alice)}, [][]backend.Kind{
				{backend.Read, backend.Write}, {backend.Permits},
			},
		},
		"fenced": {
			[]taken{acquires(backend.Fenced, Alice)}, [][]backend.Kind{
				{backend.Read, backend.Write}, {backend.Permits},
			},
		},
		"read": {
			[]taken{acquires(backend.Read, Alice)}, [][]backend.Kind{
				{backend.Exclusive, backend.Fenced}, {backend.Permits},
			},
		},
		"write": {
			[]taken{acquires(backend.Write, Alice)}, [][]backend.Kind{
				{backend.Exclusive, backend.Fenced}, {backend.Permits},
			},
		},
		"write and read": {
			[]taken{acquires(backend.Write, Alice), acquires(backend.Read, Alice)},
			[][]backend.Kind{{backend.Exclusive, backend.Fenced}, {backend.Permits}},
		},
		"reads of others": {
			[]taken{acquires(backend.Read, Alice), acquires(backend.Read, "third")},
			[][]backend.Kind{{backend.Exclusive, backend.Fenced}, {backend.Permits}},
		},
		"permits": {
			[]taken{acquires(backend.Permits, Alice)}, [][]backend.Kind{
				{backend.Exclusive, backend.Fenced}, {backend.Read, backend.Write},
			},
		},
		"permits that are back": {[]taken{
			acquires(backend.Permits, Alice), releases(backend.Permits, Alice),
		},
			[][]backend.Kind{{backend.Exclusive, backend.Fenced}, {backend.Read, backend.Write}}},
	}
	for name, h := range holders {
		for _, before := range []string{"fresh", "after a plain lock"} {
			t.Run(name+", "+before, func(t *testing.T) {
				client.FlushAll(t.Context())
				s := open(t, p.Server(t, server.Addr, Options{}))
				if before != "fresh" {
					Free(t, s, "n")
				}
				for _, hold := range h.hold {
					Must[string](t)(hold(t.Context(), s))
				}
				data := client.Dump(t.Context(), "n").Val()
				for _, family := range h.families {
					for _, kind := range family {
						steps := map[string]taken{
							"acquire": acquires(kind, Bob), "re-enter": acquires(kind, Bob, true),
							"release":                    releases(kind, Bob),
							"renew":                      renews(kind, Bob),
							"renew in a batch":           renewsInBatch(kind, Bob),
							"force-release":              forces(kind),
							"look":                       looks(kind, Bob),
							"look for nobody":            looks(kind, ""),
							"acquire one's own":          acquires(kind, Alice),
							"release one's own":          releases(kind, Alice),
							"look for one's own":         looks(kind, Alice),
							"renew one's own":            renews(kind, Alice),
							"renew one's own in a batch": renewsInBatch(kind, Alice),
						}
						for what, step := range steps {
							for _, s := range []Session{s, other} {
								said, err := step(t.Context(), s)
								if !IsKind(err, backend.Refused) ||
									!errors.Is(err, backend.ErrConflict) {
									t.Errorf("%v, %s: %s, %v; want ErrConflict", kind, what, said,
										err)
								}
							}
						}
					}
				}
				if now := client.Dump(t.Context(), "n").Val(); data == "" || now != data {
					t.Errorf("it is %v now", client.HGetAll(t.Context(), "n").Val())
				}
			})
		}
	}

	// To find a conflict, a session that is refused a plain lock sends one more command, unless it
	// is subscribed to the lock or holds it.
	t.Run("on the wire", func(t *testing.T) {
		client.FlushAll(t.Context())
		s := open(t, p.Server(t, server.Addr, Options{}))
		try := func(who Session) {
			Must[string](t)(acquires(backend.Exclusive, Bob)(t.Context(), who))
		}
		Must[string](t)(acquires(backend.Exclusive, Alice)(t.Context(), s))
		try(other) // makes the scripts known to the server
		attempt, question := `"EVALSHA" "SHA" "1" "n" "30000" `+Quoted(Bob),
			`"EVALSHA" "SHA" "1" "n"`
		m := Watch(t, server.Addr)
		try(s)
		wantCommands(t, m, attempt) // s itself holds the lock, so it sends only the attempt
		try(other)
		wantCommands(t, m, attempt, question)
		l := Subscribe(t, other, "n")
		m.All()
		try(other)
		try(other)
		wantCommands(t, m, attempt, attempt)
		l.Sub.Close()
		testservers.Until(t, "it has left", func() bool {
			return client.PubSubNumSub(t.Context(), lockChannel).Val()[lockChannel] == 0
		})
		m.All()
		try(other)
		wantCommands(t, m, attempt, question)
	})
}

// KindsTogether checks that it takes only a few scripts to renew the holds of all kinds, and that
// an error for one hold doesn't affect the others.
func KindsTogether(t *testing.T, p Package, server *testservers.Server) {
	ctx := t.Context()
	s, client := open(t, p.Server(t, server.Addr, Options{})), connect(t, server.Addr)
	reqs := renewals(t, s, 40)
	renewAll(ctx, s, reqs) // makes the scripts known to the server
	m := Watch(t, server.Addr)
	for i, res := range renewAll(ctx, s, reqs) {
		if res.err != nil || !res.Held {
			t.Errorf("%+v: %+v", reqs[i], res)
		}
	}
	if got := m.Commands(); len(got) != len(allKinds) {
		t.Errorf("renewed %d holds with %d commands", len(reqs), len(got))
	}
	for _, req := range reqs {
		look := Must[backend.LookResult](t)(s.Look(ctx, backend.LookRequest{
			Kind: req.Kind, Name: req.Name, Owner: Alice, Permits: req.Permits,
		}))
		if look.Count != 1 || look.Remaining <= Lease || look.Remaining > 2*Lease+time.Millisecond {
			t.Fatalf("%s was renewed, and is %+v", req.Name, look)
		}
	}

	// For each kind, the first lock is held by another owner, the second is gone, and the third
	// name belongs to data that isn't a lock.
	for i, name := range []string{"another's", "gone", "no lock"} {
		for j := range allKinds {
			req := &reqs[len(allKinds)*i+j]
			switch name {
			case "another's":
				req.Owner = Bob
			case "no lock":
				client.Set(ctx, req.Name, "precious", 0)
			default:
				client.Del(ctx, req.Name, "{"+req.Name+"}:timeout")
			}
		}
	}
	for i, res := range renewAll(ctx, s, reqs) {
		switch which := i / len(allKinds); {
		case which == 2:
			WantKind(t, res.err, backend.Refused)
		case res.err != nil || res.Held != (which > 2):
			t.Errorf("%+v: %+v", reqs[i], res)
		}
	}
}

// renewals acquires n locks of each kind. It returns requests that renew them for twice as long.
func renewals(t *testing.T, s Session, n int) (reqs []backend.RenewRequest) {
	t.Helper()
	for i := range n {
		for _, kind := range allKinds {
			req := backend.AcquireRequest{
				Kind: kind, Name: fmt.Sprint(kind, ":", i), Owner: Alice, Lease: Lease,
			}
			req.Permits, req.Limit = numbers(kind)
			Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
			reqs = append(reqs, backend.RenewRequest{
				Kind: kind, Name: req.Name, Owner: Alice, Lease: 2 * Lease, Permits: req.Permits,
			})
		}
	}
	return reqs
}

type renewal struct {
	backend.RenewResult
	err error
}

func renewAll(ctx context.Context, s Session, reqs []backend.RenewRequest) []renewal {
	all := make([]renewal, len(reqs))
	var mu sync.Mutex
	s.RenewBatch(ctx, reqs, func(i int, res backend.RenewResult, err error) {
		mu.Lock()
		defer mu.Unlock()
		all[i] = renewal{res, err}
	})
	return all
}

// KindsInCluster tests all kinds in a cluster of three masters.
func KindsInCluster(t *testing.T, p Package, nodes []*testservers.Server) {
	for name, o := range map[string]Options{"plain": {}, "sharded": sharded} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			s, other := open(t, p.Cluster(t, nodes, o)), open(t, p.Cluster(t, nodes, o))
			reqs := renewals(t, s, 10) // spread over all nodes
			for i, res := range renewAll(ctx, s, reqs) {
				if res.err != nil || !res.Held {
					t.Errorf("%+v: %+v", reqs[i], res)
				}
			}
			for _, req := range reqs {
				l := SubscribeTo(t, other, req.Kind, req.Name)
				res := Must[backend.ReleaseResult](t)(s.Release(ctx, backend.ReleaseRequest{
					Kind: req.Kind, Name: req.Name, Owner: Alice, Lease: Lease,
					Permits: req.Permits, AskWaiting: true,
				}))
				if res.Outcome != backend.Freed || res.Counted && o.Sharded && res.Waiting != 1 {
					t.Errorf("%s: %+v", req.Name, res)
				}
				l.Wait()
				l.Sub.Close()
			}
			for _, name := range []string{"a{b", "{}x", "a}b"} {
				for _, kind := range allKinds {
					_, err := s.Acquire(ctx, backend.AcquireRequest{
						Kind: kind, Name: name, Owner: Alice, Lease: Lease,
					})
					WantKind(t, err, backend.Refused)
					_, err = s.Subscribe(ctx, backend.SubscribeRequest{
						Kind: kind, Name: name, Wake: func(backend.Wakeup) {},
					})
					WantKind(t, err, backend.Refused)
					for _, res := range renewAll(ctx, s,
						[]backend.RenewRequest{{Kind: kind, Name: name, Owner: Alice,
							Lease: Lease}}) {
						WantKind(t, res.err, backend.Refused)
					}
				}
			}
		})
	}
}

// KindsReplicated tests that acquisitions of each kind wait for replicas. The master has two
// replicas.
func KindsReplicated(
	t *testing.T, p Package, master *testservers.Server, slaves []*testservers.Server,
) {
	ctx := t.Context()
	client := connect(t, master.Addr)
	s := open(t, p.Server(t, master.Addr, Options{Replicas: 2, Timeout: Ample}))
	for _, kind := range []backend.Kind{backend.Fenced, backend.Read, backend.Write,
		backend.Permits} {
		for range 2 { // makes the scripts known to the server
			Must[string](t)(acquires(kind, Alice)(ctx, s))
			Must[string](t)(releases(kind, Alice)(ctx, s))
		}
		m := Watch(t, master.Addr)
		if said := Must[string](t)(acquires(kind, Alice, true)(ctx, s)); said != "acquired 1" {
			t.Errorf("%v: %s", kind, said)
		}
		got := m.Commands()
		if len(got) != 2 || !strings.HasPrefix(got[0], `"EVALSHA"`) ||
			got[1] != Quoted("WAIT", 2, Ample.Milliseconds()) {
			t.Errorf("%v: %q", kind, got)
		}
		for _, slave := range slaves {
			if slave.Do("EXISTS", "n") != "1" {
				t.Errorf("%v: it was acquired before a replica had it", kind)
			}
		}
		Must[string](t)(releases(kind, Alice)(ctx, s))
	}
	client.Del(ctx, "n") // removes the limit
	slaves[0].Stop()
	defer slaves[0].Cont()
	scant := open(t, p.Server(t, master.Addr, Options{Replicas: 2, Timeout: Scant}))
	for _, kind := range []backend.Kind{backend.Fenced, backend.Read, backend.Write,
		backend.Permits} {
		_, err := acquires(kind, Alice)(ctx, scant)
		wantNotReplicated(t, err, "1 of 2")
		if said := Must[string](t)(releases(kind, Alice)(ctx, scant)); said != "freed" {
			t.Errorf("%v: what too few replicas have is released: %s", kind, said)
		}
	}
	if client.Get(ctx, "n").Val() != "1" || client.Exists(ctx, permitsKey).Val() != 0 {
		t.Error("something is left")
	}
}

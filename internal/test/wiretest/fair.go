package wiretest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract/faults"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// The fair lock "n" has these keys and fields, in addition to those of other locks. The fields are
// for the owners Alice and Bob.
const (
	lineKey     = "redisson_lock_queue:{n}"
	timesKey    = "redisson_lock_timeout:{n}"
	placesKey   = "distsync_fair_places:{n}"
	grantsFor   = "distsync_fair_grants:"
	aliceInLine = Alice + ":fair"
	bobInLine   = Bob + ":fair"

	place = time.Minute
)

// bobClient is Bob's client.
var bobClient = Bob[:strings.LastIndex(Bob, ":")]

// A LineListener holds a subscription to a fair lock.
type LineListener struct {
	*Listener
	granted chan backend.Grant
}

// listenInLine subscribes to a fair lock.
func listenInLine(t testing.TB, s Session, name string) *LineListener {
	t.Helper()
	l := &LineListener{
		&Listener{Name: name, t: t, woke: make(chan bool, 100)}, make(chan backend.Grant, 1000),
	}
	req := backend.SubscribeRequest{Kind: backend.Fair, Name: name,
		Wake:    func(backend.Wakeup) { l.woke <- true },
		Granted: func(g backend.Grant) { l.granted <- g },
	}
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	l.Sub = Must[backend.Subscription](t)(s.Subscribe(ctx, req))
	return l
}

// next returns the next event.
func (l *LineListener) next() (g backend.Grant) {
	l.t.Helper()
	select {
	case g = <-l.granted:
	case <-time.After(testservers.Patience):
		l.t.Fatalf("nobody was given %s", l.Name)
	}
	return g
}

// given waits until an owner is granted the lock. since is a time shortly before the grant.
func (l *LineListener) given(owner string, since time.Time) {
	l.t.Helper()
	g, heard := l.next(), time.Now()
	if g.Owner == owner && g.Lease == 0 && heard.Sub(since) > 500*time.Millisecond {
		return // the grant may have expired, so the event only tells the owner to try again
	}
	if g.Owner != owner || g.Lease != time.Second || g.Since.After(heard) {
		l.t.Errorf("%+v was given the lock, heard at %v; want %s", g, heard, owner)
	}
	// The client translates g.Since from the server's clock. The result can be too early by up to
	// 1% of the time since the session last read that clock.
	if early := since.Sub(g.Since); early > time.Minute/100 {
		l.t.Errorf("it is said to be given %v before it was", early)
	}
}

// asks waits for an event that tells an owner to ask the server for the lock.
func (l *LineListener) asks(owner string) {
	l.t.Helper()
	if g := l.next(); g.Owner != owner || g.Lease != 0 {
		l.t.Errorf("%+v; want that %s asks", g, owner)
	}
}

// comes asks for the lock, and for a place in line if another owner holds it.
func comes(t testing.TB, s Session, owner string) backend.AcquireResult {
	t.Helper()
	req := Acquire(owner)
	req.Kind, req.Place = backend.Fair, place
	return Must[backend.AcquireResult](t)(s.Acquire(t.Context(), req))
}

func leaves(t testing.TB, s Session, owner string, want backend.ReleaseOutcome) {
	t.Helper()
	req := Release(owner)
	req.Kind = backend.Fair
	if res := Must[backend.ReleaseResult](t)(s.Release(t.Context(), req)); res.Outcome != want {
		t.Fatalf("%s leaves: %v, want %v", owner, res.Outcome, want)
	}
}

func keeps(t testing.TB, s Session, owners ...string) backend.PlacesResult {
	t.Helper()
	return Must[backend.PlacesResult](t)(s.(backend.Liner).KeepPlaces(t.Context(),
		backend.PlacesRequest{Kind: backend.Fair, Name: "n", Owners: owners, Place: place}))
}

// keepsOne keeps Bob's place.
func keepsOne(ctx context.Context, s Session) (string, error) {
	res, err := s.(backend.Liner).KeepPlaces(ctx, backend.PlacesRequest{
		Kind: backend.Fair, Name: "n", Owners: []string{Bob}, Place: place,
	})
	return "held by " + res.Holder, err
}

// standsInLine returns a step that asks for the lock and for a place in line.
func standsInLine(owner string) taken {
	return func(ctx context.Context, s Session) (string, error) {
		req := Acquire(owner)
		req.Kind, req.Place = backend.Fair, place
		res, err := s.Acquire(ctx, req)
		return fmt.Sprint(res.Acquired), err
	}
}

// fairKeys are the first arguments of the scripts: the number of keys, the keys, and prefixes of
// channels.
var fairKeys = []any{5, "n", lineKey, timesKey, placesKey, lockChannel, grantsFor}

// fairOnWire lists steps with their expected results, and the arguments that they send. If a step
// grants the lock to Bob, the field message is Bob, and the published message must name him.
var fairOnWire = []wired{
	{"lock", acquires(backend.Fair, Alice), "acquired 1",
		append(slices.Clip(fairKeys), 30000, aliceInLine, 0, 0, 0), ""},
	{"lock again", acquires(backend.Fair, Alice), "acquired 1",
		append(slices.Clip(fairKeys), 30000, aliceInLine, 0, 0, 0), ""},
	{"re-enter", acquires(backend.Fair, Alice, true), "acquired 2",
		append(slices.Clip(fairKeys), 30000, aliceInLine, 0, 1, 0), ""},
	{"another tries", acquires(backend.Fair, Bob), "held",
		append(slices.Clip(fairKeys), 30000, bobInLine, 0, 0, 0), ""},
	{"another waits", standsInLine(Bob), "false",
		append(slices.Clip(fairKeys), 30000, bobInLine, 60000, 0, 0), ""},
	{"another keeps his place", keepsOne, "held by ",
		append(slices.Clip(fairKeys), 60000, 1, bobInLine), ""},
	{"renew", renews(backend.Fair, Alice), "true",
		append(slices.Clone(fairKeys[:6]), 30000, grantsFor, aliceInLine), ""},
	{"renew in a batch", renewsInBatch(backend.Fair, Alice), "true",
		append(slices.Clone(fairKeys[:6]), 30000, grantsFor, aliceInLine), ""},
	{"renew another's", renews(backend.Fair, Bob), "false",
		append(slices.Clone(fairKeys[:6]), 30000, grantsFor, bobInLine), ""},
	{"release one of two", releases(backend.Fair, Alice), "holds left",
		append(slices.Clip(fairKeys), 30000, aliceInLine), ""},
	{"release", releases(backend.Fair, Alice), "freed",
		append(slices.Clip(fairKeys), 30000, aliceInLine), Bob},
	{"the other asks", keepsOne, "held by " + Bob,
		append(slices.Clip(fairKeys), 60000, 1, bobInLine), ""},
	{"the other releases", releases(backend.Fair, Bob), "freed",
		append(slices.Clip(fairKeys), 30000, bobInLine), ""},
	{"release nothing", releases(backend.Fair, Bob), "not held",
		append(slices.Clip(fairKeys), 30000, bobInLine), ""},
	{"lock, later", acquires(backend.Fair, Alice), "acquired 1",
		append(slices.Clip(fairKeys), 30000, aliceInLine, 0, 0, 0), ""},
	{"another waits again", standsInLine(Bob), "false",
		append(slices.Clip(fairKeys), 30000, bobInLine, 60000, 0, 0), ""},
	{"force", forces(backend.Fair), "true", slices.Clip(fairKeys), Bob},
	{"the other releases what was forced", releases(backend.Fair, Bob), "freed",
		append(slices.Clip(fairKeys), 30000, bobInLine), ""},
}

// Fair tests the commands and messages of fair locks on a server.
func Fair(t *testing.T, p Package, server *testservers.Server) {
	client := connect(t, server.Addr)
	t.Run("on the wire", func(t *testing.T) {
		s := open(t, p.Server(t, server.Addr, Options{}))
		m := Watch(t, server.Addr)
		for _, w := range fairOnWire { // first the server doesn't know the scripts
			server.Do("SCRIPT", "FLUSH")
			m.All()
			w.take(t, s)
			wantScriptCall(t, m.Commands(), w.sends...)
		}
		for _, w := range fairOnWire {
			w.take(t, s)
		}
		messages := listen(t, client, grantsFor+bobClient)
		m.All()
		for _, w := range fairOnWire {
			w.take(t, s)
			wantCommands(t, m, `"EVALSHA" "SHA" `+Quoted(w.sends...))
			if w.message != "" {
				got := Must[any](t)(messages.ReceiveTimeout(t.Context(), testservers.Patience))
				if !strings.HasSuffix(fmt.Sprint(got), " 1000 1 n"+bobInLine+">") {
					t.Errorf("%s: published %v", w.what, got)
				}
			}
		}
		if got := client.Keys(t.Context(), "*").Val(); len(got) > 0 {
			t.Errorf("keys %q are left", got)
		}
	})

	t.Run("two scripts for each section", func(t *testing.T) {
		a, b := locks(t, p.Server(t, server.Addr, Options{})).FairLocker("n"),
			locks(t, p.Server(t, server.Addr, Options{})).FairLocker("n")
		m := Watch(t, server.Addr)
		a.Lock()
		got := make(chan struct{})
		go func() {
			b.Lock()
			close(got)
		}()
		testservers.Until(t, "the other is in line", func() bool {
			return client.LLen(t.Context(), lineKey).Val() == 1
		})
		a.Unlock()
		<-got
		b.Unlock()
		scripts := 0
		for _, c := range m.Commands() {
			if strings.HasPrefix(c, `"EVAL`) {
				scripts++
			}
		}
		if scripts > 6 {
			// The server already knows the scripts, so each client calls one to lock and one to
			// unlock. The waiter makes another call when its subscription is confirmed, or after a
			// second.
			t.Errorf("%d scripts", scripts)
		}
	})

	t.Run("given", func(t *testing.T) {
		s, other := open(t, p.Server(t, server.Addr, Options{})),
			open(t, p.Server(t, server.Addr, Options{}))
		comes(t, s, Alice)
		comes(t, other, Bob)
		l := listenInLine(t, other, "n")
		keeps(t, other, Bob)
		second := bobClient + ":8"
		comes(t, other, second)
		now := time.Now()
		leaves(t, s, Alice, backend.Freed)
		l.given(Bob, now)
		now = time.Now()
		leaves(t, other, Bob, backend.Freed)
		l.given(second, now)
		// A client can subscribe before any of its owners is waiting.
		third := open(t, p.Server(t, server.Addr, Options{}))
		early := listenInLine(t, third, "n")
		comes(t, third, "third:1")
		now = time.Now()
		leaves(t, other, second, backend.Freed)
		early.given("third:1", now)
		// A client that waits again soon afterwards needs no new subscription.
		early.Sub.Close()
		comes(t, other, Bob)
		m := Watch(t, server.Addr)
		again := listenInLine(t, third, "n")
		comes(t, third, "third:2")
		if got := m.Commands(); len(got) != 1 || !strings.HasPrefix(got[0], `"EVALSHA"`) {
			t.Errorf("to wait again costs %q", got)
		}
		leaves(t, third, "third:1", backend.Freed)
		l.given(Bob, now)
		leaves(t, other, Bob, backend.Freed)
		again.given("third:2", now)
		leaves(t, third, "third:2", backend.Freed)
	})

	t.Run("anybody may publish", func(t *testing.T) {
		s := open(t, p.Server(t, server.Addr, Options{}))
		comes(t, s, Alice)
		l := listenInLine(t, s, "n")
		keeps(t, s, bobClient+":9")
		far := time.Now().Add(time.Hour).UnixMilli()
		for _, message := range []string{"", "0", "1", "nonsense", "1 2 3", "1 2 3 n",
			"x 1000 1 n" + Alice, "1 1000 99 n" + Alice, "1 1000 -1 n",
			fmt.Sprintf("%d 1000 5 other%s", far, bobInLine)} {
			client.Publish(t.Context(), grantsFor+bobClient, message)
		}
		// The server's clock can't have shown these times, so the owner must ask.
		for _, at := range []int64{far, 0, -far} {
			client.Publish(t.Context(), grantsFor+bobClient,
				fmt.Sprintf("%d 1000 1 n%s", at, bobInLine))
			l.asks(Bob)
		}
		leaves(t, s, bobClient+":9", backend.NotHeld)
		leaves(t, s, Alice, backend.Freed)
	})

	t.Run("Redisson is ahead", func(t *testing.T) {
		s := open(t, p.Server(t, server.Addr, Options{}))
		l := listenInLine(t, s, "n")
		const java = "33333333-3333-3333-3333-333333333333:42"
		client.HSet(t.Context(), "n", java, 1)
		client.PExpire(t.Context(), "n", time.Minute)
		// Alice's place comes from an attempt, and Bob's from KeepPlaces
		for _, owner := range []string{Alice, Bob} {
			if owner == Alice {
				comes(t, s, Alice)
			} else {
				keeps(t, s, Bob)
			}
			client.Publish(t.Context(), lockChannel+":"+owner+":fair", "0")
			l.asks(owner)
		}
		leaves(t, s, Alice, backend.NotHeld)
		leaves(t, s, Bob, backend.NotHeld)
		testservers.Until(t, "nobody listens for his turn", func() bool {
			return slices.Equal(client.PubSubChannels(t.Context(), lockChannel+":*").Val(),
				[]string{})
		})
		client.Del(t.Context(), "n")
	})

	t.Run("a name in braces", func(t *testing.T) { refusesBraces(t, p, server, backend.Fair) })

	t.Run("no other lock", func(t *testing.T) {
		s := open(t, p.Server(t, server.Addr, Options{}))
		for _, kind := range []backend.Kind{backend.Exclusive, backend.Fenced} {
			client.FlushAll(t.Context())
			Must[string](t)(acquires(kind, Alice)(t.Context(), s))
			if said := Must[string](t)(
				acquires(backend.Fair, Alice)(t.Context(), s)); said != "held" {
				t.Errorf("a fair lock beside one that is %v: %s", kind, said)
			}
			Must[string](t)(releases(kind, Alice)(t.Context(), s))
			Must[string](t)(acquires(backend.Fair, Alice)(t.Context(), s))
			for _, owner := range []string{Alice, Bob} {
				if said := Must[string](t)(acquires(kind, owner)(t.Context(), s)); said != "held" {
					t.Errorf("one that is %v beside a fair lock: %s", kind, said)
				}
				if said := Must[string](t)(
					releases(kind, owner)(t.Context(), s)); said != "not held" {
					t.Errorf("a fair lock is released as one that is %v: %s", kind, said)
				}
			}
		}
		for _, kind := range []backend.Kind{backend.Read, backend.Write} {
			client.FlushAll(t.Context())
			steps := []taken{standsInLine(Bob), keepsOne, renewsInBatch(backend.Fair, Bob),
				releases(backend.Fair, Bob), renews(backend.Fair, Bob),
				forces(backend.Fair), looks(backend.Fair, Bob), looks(backend.Fair, "")}
			Must[string](t)(acquires(kind, Alice)(t.Context(), s))
			for i, step := range steps {
				if said, err := step(t.Context(), s); !errors.Is(err, backend.ErrConflict) ||
					!IsKind(err, backend.Refused) {
					t.Errorf("step %d beside a %v: %s, %v", i, kind, said, err)
				}
			}
			client.FlushAll(t.Context())
			Must[string](t)(acquires(backend.Fair, Alice)(t.Context(), s))
			for _, step := range []taken{acquires(kind, Bob), releases(kind, Bob), forces(kind),
				looks(kind, Bob)} {
				if said, err := step(t.Context(), s); !errors.Is(err, backend.ErrConflict) {
					t.Errorf("a %v beside a fair lock: %s, %v", kind, said, err)
				}
			}
		}
		client.FlushAll(t.Context())
		_, err := s.(backend.Liner).KeepPlaces(t.Context(), backend.PlacesRequest{
			Kind: backend.Write, Name: "n", Owners: []string{Bob}, Place: place,
		})
		WantKind(t, err, backend.Refused)
	})
}

// FairBreaks tests that a client asks about grants that it may have missed while its connection was
// cut.
func FairBreaks(t *testing.T, p Package, server *testservers.Server) {
	proxy := NewProxy(t, server.Addr, faults.RESP)
	s, other := open(t, p.Server(t, proxy.Addr(), Options{})),
		open(t, p.Server(t, server.Addr, Options{}))
	comes(t, other, Alice)
	comes(t, s, Bob)
	l := listenInLine(t, s, "n")
	keeps(t, s, Bob)
	for range 2 {
		proxy.Cut()
		if !l.Wait() {
			t.Error("a new connection wakes one")
		}
	}
	// After the break, the session ignores its earlier readings of the server's clock.
	leaves(t, other, Alice, backend.Freed)
	l.asks(Bob)
	testservers.Until(t, "the server is used again", func() bool {
		res, err := s.(backend.Liner).KeepPlaces(t.Context(), backend.PlacesRequest{
			Kind: backend.Fair, Name: "n", Owners: []string{Bob}, Place: place,
		})
		return err == nil && res.Holder == Bob && res.Remaining > 0
	})
	// This release uses the other session, because s might not have noticed that some of its
	// connections were cut.
	leaves(t, other, Bob, backend.Freed)
}

// FairPermitted tests that users need only the documented permissions.
func FairPermitted(t *testing.T, p Package, server *testservers.Server) {
	server.Do("ACL", "SETUSER", "fair", "on", ">secret", "resetchannels", "-@all", "+hello",
		"+client", "+ping", "+subscribe", "+unsubscribe",
		"+eval", "+evalsha", "+exists", "+hget", "+hkeys", "+hlen", "+hvals", "+hmget", "+hset",
		"+hincrby", "+hdel", "+get", "+del", "+pttl", "+pexpire", "+pexpireat", "+persist",
		"+publish", "+time",
		"+lindex", "+llen", "+lpop", "+lpush", "+lrange", "+lrem", "+rpush", "+zadd", "+zcard",
		"+zrangebyscore", "+zrem", "+zscore",
		"~lock:*", "~redisson_lock__channel:*", "~redisson_lock_queue:*",
		"~redisson_lock_timeout:*", "~distsync_fair_places:*",
		"&redisson_lock__channel:*", "&distsync_fair_grants:*")
	s := open(t, p.Server(t, server.Addr, Options{User: "fair", Prefix: "lock:"}))
	client := connect(t, server.Addr)
	for range 2 {
		for _, w := range fairOnWire {
			w.take(t, s)
		}
	}
	l := listenInLine(t, s, "n")
	Must[string](t)(looks(backend.Fair, Alice)(t.Context(), s))
	keepsAndForces(t, s, backend.Fair)
	comes(t, s, Alice)
	comes(t, s, Bob)
	// Put one of Redisson's owners at the front of the line, with a timeout in the future. Then
	// remove that owner, and add two owners without a timeout: one behind our owners, and one in
	// front of them.
	const line, times, java = "redisson_lock_queue:{lock:n}", "redisson_lock_timeout:{lock:n}",
		"33333333-3333-3333-3333-333333333333:42"
	client.LPush(t.Context(), line, java)
	client.Do(t.Context(), "ZADD", times, time.Now().Add(time.Hour).UnixMilli(), java)
	keeps(t, s, Bob, Alice+"0")
	client.RPush(t.Context(), line, "nobody")
	client.LRem(t.Context(), line, 1, java)
	client.LPush(t.Context(), line, "nobody either")
	leaves(t, s, Alice, backend.Freed)
	if g := l.next(); g.Owner != Alice+"0" && g.Owner != Bob {
		t.Errorf("%+v", g)
	}
	leaves(t, s, Alice+"0", backend.Freed)
	leaves(t, s, Bob, backend.Freed)
	client.HSet(t.Context(), "lock:user", "name", "bob")
	req := Acquire(Alice)
	req.Kind, req.Name = backend.Fair, "user"
	if _, err := s.Acquire(t.Context(), req); !IsKind(err, backend.Refused) ||
		!errors.Is(err, backend.ErrConflict) {
		t.Error(err)
	}
}

// FairInCluster tests fair locks in a cluster of three masters.
func FairInCluster(t *testing.T, p Package, nodes []*testservers.Server) {
	for name, o := range map[string]Options{"plain": {}, "sharded": sharded} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			s, other := open(t, p.Cluster(t, nodes, o)), open(t, p.Cluster(t, nodes, o))
			acquire := func(s Session, name, owner string) bool {
				t.Helper()
				return Must[backend.AcquireResult](t)(s.Acquire(ctx, backend.AcquireRequest{
					Kind: backend.Fair, Name: name, Owner: owner, Lease: Lease,
					Place: time.Minute})).Acquired
			}
			for i, lock := range []string{"a", "b", "c", "{a}b", "a{b}c", "{a}{b}"} {
				first, second := fmt.Sprint(Alice, i), fmt.Sprint(Bob, i)
				if !acquire(s, lock, first) || acquire(other, lock, second) {
					t.Fatalf("%q: the first gets in, and then the second", lock)
				}
				l := listenInLine(t, other, lock)
				Must[backend.PlacesResult](t)(other.(backend.Liner).KeepPlaces(ctx,
					backend.PlacesRequest{
						Kind: backend.Fair, Name: lock, Owners: []string{second},
						Place: time.Minute,
					}))
				now := time.Now()
				Must[backend.ReleaseResult](t)(s.Release(ctx, backend.ReleaseRequest{
					Kind: backend.Fair, Name: lock, Owner: first, Lease: Lease,
				}))
				l.given(second, now)
				for _, res := range renewAll(ctx, other,
					[]backend.RenewRequest{{Kind: backend.Fair, Name: lock, Owner: second,
						Lease: Lease}}) {
					if res.err != nil || !res.Held {
						t.Errorf("%q: renewed: %+v", lock, res)
					}
				}
				l.Sub.Close()
				Must[backend.ForceReleaseResult](t)(
					s.ForceRelease(ctx, backend.ForceReleaseRequest{
						Kind: backend.Fair, Name: lock,
					}))
			}
			for _, name := range []string{"a{b", "{}x", "a}b"} {
				_, err := s.Acquire(ctx, backend.AcquireRequest{
					Kind: backend.Fair, Name: name, Owner: Alice, Lease: Lease,
				})
				_, listens := s.Subscribe(ctx, backend.SubscribeRequest{
					Kind: backend.Fair, Name: name, Wake: func(backend.Wakeup) {},
					Granted: func(backend.Grant) {},
				})
				_, keeps := s.(backend.Liner).KeepPlaces(ctx, backend.PlacesRequest{
					Kind: backend.Fair, Name: name, Owners: []string{Bob}, Place: place,
				})
				for _, err := range []error{err, listens, keeps} {
					WantKind(t, err, backend.Refused)
				}
			}
		})
	}
}

// FairReplicated tests that no client relies on a grant that the replicas haven't acknowledged. The
// master has two replicas.
func FairReplicated(
	t *testing.T, p Package, master *testservers.Server, slaves []*testservers.Server,
) {
	ctx := t.Context()
	s := open(t, p.Server(t, master.Addr, Options{Replicas: 2, Timeout: Ample}))
	scant := open(t, p.Server(t, master.Addr, Options{Replicas: 2, Timeout: Scant}))
	comes(t, s, Alice)
	l := listenInLine(t, s, "n")
	comes(t, s, Bob)
	m := Watch(t, master.Addr)
	keeps(t, s, Bob)
	if got := m.Commands(); len(got) > 2 || strings.Contains(fmt.Sprint(got), "WAIT") {
		t.Errorf("to keep a place costs %q", got)
	}
	leaves(t, s, Alice, backend.Freed)
	l.asks(Bob)
	m.All()
	if res := keeps(t, s, Bob); res.Holder != Bob {
		t.Errorf("%+v", res)
	}
	if got := m.Commands(); !slices.Contains(got, Quoted("WAIT", 2, Ample.Milliseconds())) {
		t.Errorf("who was given it asks with %q", got)
	}
	slaves[0].Stop()
	defer slaves[0].Cont()
	_, err := scant.(backend.Liner).KeepPlaces(ctx, backend.PlacesRequest{
		Kind: backend.Fair, Name: "n", Owners: []string{Bob}, Place: place,
	})
	wantNotReplicated(t, err, "1 of 2")
	WantKind(t, err, backend.Unknown)
	_, err = standsInLine(Bob)(ctx, scant)
	wantNotReplicated(t, err, "1 of 2")
	leaves(t, scant, Bob, backend.Freed)
}

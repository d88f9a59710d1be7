package wiretest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// uses contains typical ways in which programs use a store. In most of them two clients compete.
// Each function returns the errors of both clients.
var uses = map[string]func(ctx context.Context, one, two *dlock.Client) error{
	"plain": func(ctx context.Context, one, two *dlock.Client) error {
		return hand(ctx, one.Locker("plain"), two.Locker("plain"))
	},
	"fenced": func(ctx context.Context, one, two *dlock.Client) error {
		return hand(ctx, one.FencedLocker("fenced"), two.FencedLocker("fenced"))
	},
	"fair": func(ctx context.Context, one, two *dlock.Client) error {
		return hand(ctx, one.FairLocker("fair"), two.FairLocker("fair"))
	},
	"read and write": func(ctx context.Context, one, two *dlock.Client) error {
		if err := hand(ctx, one.RWLocker("rw").Reader(), two.RWLocker("rw").Writer()); err != nil {
			return err
		}
		if err := hand(ctx, one.RWLocker("rw").Writer(), two.RWLocker("rw").Reader()); err != nil {
			return err
		}
		// Readers have their own keys, whose names the scripts compute.
		var held []*dlock.Hold
		for _, c := range []*dlock.Client{one, two} {
			h, err := c.RWLocker("rw").Reader().Acquire(ctx)
			if err != nil {
				return err
			}
			held = append(held, h)
		}
		_, err := one.Inspect(ctx, "rw")
		return errors.Join(err, held[0].Release(ctx), held[1].Release(ctx))
	},
	"permits": func(ctx context.Context, one, two *dlock.Client) error {
		h, err := one.Semaphore("permits", 2).Acquire(ctx, 2)
		if err != nil {
			return err
		}
		other := make(chan error, 1)
		go func() {
			other <- two.Semaphore("permits", 2).Do(ctx, 1, func(context.Context) error {
				return nil
			})
		}()
		return errors.Join(h.Release(ctx), <-other)
	},
	"latch": func(ctx context.Context, one, two *dlock.Client) error {
		if _, err := one.Latch("latch").Set(ctx, 1); err != nil {
			return err
		}
		if err := two.Latch("latch").CountDown(ctx); err != nil {
			return err
		}
		return one.Latch("latch").Wait(ctx)
	},
	"once": func(ctx context.Context, one, two *dlock.Client) error {
		for _, c := range []*dlock.Client{one, two} {
			_, err := c.Once(ctx, "once", "today", time.Minute, func(context.Context) error {
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	},
	"inspect": func(ctx context.Context, one, _ *dlock.Client) error {
		_, err := one.Inspect(ctx, "plain")
		return err
	},
}

// hand acquires a lock through one Locker, checks that the other can't acquire it, releases it, and
// acquires it through the other.
func hand(ctx context.Context, one, other *dlock.Locker) error {
	h, err := one.Acquire(ctx)
	if err != nil {
		return err
	}
	if ok, err := other.TryLock(ctx); ok || err != nil {
		return fmt.Errorf("what another has: %v, %w", ok, err)
	}
	done := make(chan error, 1)
	go func() { done <- other.Do(ctx, func(context.Context) error { return nil }) }()
	return errors.Join(h.Release(ctx), <-done)
}

// allUses lists all uses. constantUses lists those whose scripts take all keys from KEYS.
var (
	allUses      = slices.Sorted(maps.Keys(uses))
	constantUses = []string{"fenced", "latch", "once", "plain"}
)

// Services tests stores that are as strict as managed services, compatible servers and proxies.
// Each use must work, or be refused at once with an error that names a remedy.
func Services(t *testing.T, p Package, server *testservers.Server) {
	unknown := func(verbs ...string) map[string]string {
		bars := make(map[string]string)
		for _, verb := range verbs {
			bars[verb] = fmt.Sprintf("ERR unknown command '%s', with args beginning with: ",
				strings.ToLower(verb))
		}
		return bars
	}
	denied := func(verbs ...string) map[string]string {
		bars := make(map[string]string)
		for _, verb := range verbs {
			bars[verb] = fmt.Sprintf("NOPERM this user has no permissions to run the '%s' command",
				strings.ToLower(verb))
		}
		return bars
	}
	// Services refuse these commands, but locks work without them.
	spared := []string{
		"ACL", "CONFIG", "CLUSTER", "COMMAND", "DEBUG", "FCALL", "FUNCTION", "INFO", "KEYS",
		"MIGRATE",
		"MONITOR", "MULTI", "OBJECT", "PSUBSCRIBE", "PUBSUB", "SCAN", "SCRIPT", "WAIT", "WATCH",
	}
	const lua, flag = "locks need a server that runs Lua scripts", "script_check_enable"
	only := func(bars map[string]string) *Service { return &Service{Bars: bars} }
	envoy := map[string]string{"SUBSCRIBE": "unsupported command 'subscribe'"}
	twemproxy := map[string]string{"SUBSCRIBE": ""}
	aliyun := map[string]string{
		"EVAL":    "ERR command eval not support for normal user",
		"EVALSHA": "ERR command evalsha not support for normal user",
	}
	for name, c := range map[string]struct {
		service *Service
		works   []string
		says    string // contained in the error of each use that doesn't work
		simple  bool   // the client doesn't use HELLO and CLIENT
	}{
		"commands that are unknown": {service: only(unknown(spared...)), works: allUses},
		"commands that are denied":  {service: only(denied(spared...)), works: allUses},
		"no CLIENT": {
			service: only(denied("CLIENT")), works: allUses, simple: true,
		},
		"no HELLO": {
			service: only(unknown("CLIENT", "HELLO")), works: allUses, simple: true,
		},
		"no subscriptions":           {service: only(unknown("SUBSCRIBE")), works: allUses},
		"subscriptions are denied":   {service: only(denied("SUBSCRIBE")), works: allUses},
		"subscriptions in a proxy":   {service: only(envoy), works: allUses},
		"subscriptions end the link": {service: only(twemproxy), works: allUses},
		"declared keys":              {service: &Service{Declared: true}, works: allUses},
		"constant keys": {
			service: &Service{Constant: true}, works: constantUses, says: flag,
		},
		"no scripts":         {service: only(unknown("EVAL", "EVALSHA")), says: lua},
		"scripts are denied": {service: only(denied("EVAL", "EVALSHA")), says: lua},
		"scripts for others": {service: only(aliyun), says: lua},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
			defer cancel()
			server.Do("FLUSHALL")
			server.Do("SCRIPT", "FLUSH")
			b := p.Server(t, c.service.Serve(t, server.Addr), Options{Simple: c.simple})
			quiet, lease := dlock.WithLogger(slog.New(slog.DiscardHandler)),
				dlock.WithLease(3*time.Second)
			one, two := locks(t, b, quiet, lease), locks(t, b, quiet, lease)
			for _, use := range allUses {
				err := uses[use](ctx, one, two)
				switch works := slices.Contains(c.works, use); {
				case works && err != nil:
					t.Errorf("%s: %v", use, err)
				case !works && (err == nil || !strings.Contains(err.Error(), c.says)):
					t.Errorf("%s: %v, want it refused, and that it says %q", use, err, c.says)
				case ctx.Err() != nil:
					t.Fatalf("%s: not at once", use)
				}
			}
		})
	}
}

// Troubled tests a service that answers every script with an error for a while. During that time no
// call acquires a lock. Afterwards waiters acquire it, and a pending release is carried out.
func Troubled(t *testing.T, p Package, server *testservers.Server) {
	const inScript = "ERR Error running script" +
		" (call to f_e0f19a3d3e5e9dd9d7a7d6c0ab61b9fd3d1b7f11): @user_script:1: "
	const readOnly = "READONLY You can't write against a read only replica."
	for name, answer := range map[string]string{
		"a replica":                             readOnly,
		"a replica, in an older server's words": inScript + "@user_script: 1: -" + readOnly,
		"a server that loads":                   "LOADING Redis is loading the dataset in memory",
		"a server that loads, inside a script": inScript +
			"LOADING Dragonfly is loading the dataset in memory",
		"a script that takes long": "BUSY Redis is busy running a script. You can " +
			"only call SCRIPT KILL.",
		"a cluster that is down": "CLUSTERDOWN The cluster is down",
		"a link to a master":     "MASTERDOWN Link with MASTER is down",
		"a disk that is full": "MISCONF Errors writing to the AOF file: No " +
			"space left on device",
		"too few replicas": "NOREPLICAS Not enough good replicas to write.",
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
			defer cancel()
			server.Do("FLUSHALL")
			s := new(Service)
			b := p.Server(t, s.Serve(t, server.Addr), Options{})
			quiet := dlock.WithLogger(slog.New(slog.DiscardHandler))
			holder, waiter := locks(t, b, quiet), locks(t, b, quiet)
			held, err := holder.Locker("held").Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}

			s.Trouble(answer)
			if ok, err := waiter.Locker("free").TryLock(ctx); ok ||
				!errors.Is(err, dlock.ErrUnavailable) {
				t.Errorf("TryLock meanwhile: %v, %v; want ErrUnavailable", ok, err)
			}
			locked := make(chan error, 1)
			go func() { locked <- waiter.Locker("free").LockContext(ctx) }()
			released := make(chan error, 1)
			go func() { released <- held.Release(ctx) }()
			before := s.Met()
			testservers.Until(t, "both have tried again", func() bool { return s.Met() > before+4 })
			select {
			case err := <-locked:
				t.Fatalf("a waiter has left: %v", err)
			default:
			}
			s.Trouble("")
			if err := errors.Join(<-locked, <-released); err != nil {
				t.Error(err)
			}
			if server.Do("EXISTS", "held") != "0" {
				t.Error("what was released is held")
			}
			if server.Do("EXISTS", "free") != "1" {
				t.Error("nobody has what was waited for")
			}
		})
	}
}

// AloneInItsView tests a cluster node that lists only itself and its own slots. This happens when a
// node has lost contact with the others. A client that knows only this node follows redirections to
// find locks of other nodes, or gets an error. It never gets a lock that is held. When the node
// lists the other nodes again, the client finds all locks.
func AloneInItsView(t *testing.T, p Package, nodes []*testservers.Server) {
	ctx, cancel := context.WithTimeout(t.Context(), testservers.Patience)
	defer cancel()
	s := &Service{Alone: nodes[0]}
	seed := &testservers.Server{Addr: s.Serve(t, nodes[0].Addr)}
	quiet := dlock.WithLogger(slog.New(slog.DiscardHandler))
	c := locks(t, p.Cluster(t, []*testservers.Server{seed}, Options{}), quiet)
	sane := locks(t, p.Cluster(t, nodes, Options{}), quiet)
	got := 0
	for i := range 10 {
		name := fmt.Sprint("lock:", i)
		held, err := sane.Locker(name).Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := c.Locker(name).TryLock(ctx); ok ||
			err != nil && !errors.Is(err, dlock.ErrUnavailable) {
			t.Errorf("%s is held: %v, %v", name, ok, err)
		}
		if err := held.Release(ctx); err != nil {
			t.Error(err)
		}
		switch ok, err := c.Locker(name).TryLock(ctx); {
		case ok:
			got++
			if ok, err := sane.Locker(name).TryLock(ctx); ok || err != nil {
				t.Errorf("%s is held twice: %v", name, err)
			}
		case !errors.Is(err, dlock.ErrUnavailable):
			t.Errorf("%s is free: %v", name, err)
		}
	}
	if got == 0 {
		t.Error("not even a lock of the node itself")
	}
	s.Recover()
	for i := range 10 {
		if err := c.Locker(fmt.Sprint("other:", i)).LockContext(ctx); err != nil {
			t.Error(err)
		}
	}
}

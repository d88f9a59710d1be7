package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/postgresbackend"
)

// anywhere runs a test on each store, side by side.
func anywhere(t *testing.T, test func(t *testing.T, url string)) {
	for name, start := range map[string]func(*testing.T) string{
		"redis":  func(t *testing.T) string { return "redis://" + testservers.Redis(t).Addr },
		"valkey": func(t *testing.T) string { return "valkey://" + testservers.Valkey(t).Addr },
		"etcd":   func(t *testing.T) string { return "etcd://" + testservers.Etcd(t).Addr },
		"postgres": func(t *testing.T) string {
			s := testservers.Postgres(t, "fsync=on")
			s.SQL(postgresbackend.Schema(postgresbackend.DefaultSchema))
			return testservers.PostgresURL(s.Addr)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start(t))
		})
	}
}

// lines decodes what a command has printed as JSON.
func lines[T any](t *testing.T, text string) (all []T) {
	t.Helper()
	for line := range strings.Lines(text) {
		var v T
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, v)
	}
	return all
}

// must is for calls that return a hold.
func must(t *testing.T) func(*dlock.Hold, error) *dlock.Hold {
	return func(h *dlock.Hold, err error) *dlock.Hold {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
}

// cluttered is a store with locks of all kinds. They end by themselves a minute later.
func cluttered(t *testing.T, url string) (web *dlock.Client) {
	t.Helper()
	ctx, lease := t.Context(), dlock.FixedLease(time.Minute)
	web, cron := client(t, url, dlock.WithClientID("web-1/77/abc")),
		client(t, url, dlock.WithClientID("cron-1/5/def"))
	must(t)(web.Locker("orders:42").Acquire(ctx, lease))
	must(t)(web.RWLocker("prices").Reader().Acquire(ctx, lease))
	must(t)(cron.RWLocker("prices").Reader().Acquire(ctx, lease))
	must(t)(cron.RWLocker("stock").Writer().Acquire(ctx, lease))
	must(t)(web.Semaphore("gpu", 5).Acquire(ctx, 2, lease))
	must(t)(cron.Semaphore("gpu", 5).Acquire(ctx, 1, lease))
	must(t)(web.FairLocker("report").Acquire(ctx, lease))
	return web
}

func TestLookingAround(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, url string) {
		web := cluttered(t, url)
		const nasty = "\x1b[31m\u202ered\u009b\n"
		for _, name := range []string{nasty, "bad\xff"} {
			must(t)(web.Locker(name).Acquire(t.Context(), dlock.FixedLease(time.Minute)))
		}
		ctx, stop := context.WithCancel(t.Context())
		waits := make(chan error, 1)
		go func() {
			waits <- client(t, url, dlock.WithClientID("late-1/9/ghi")).FairLocker("report").
				LockContext(ctx)
		}()
		defer func() {
			stop()
			<-waits
		}()
		testservers.Until(t, "one stands in line", func() bool {
			l, err := web.Inspect(ctx, "report")
			return err == nil && len(l.Line) == 1
		})

		list := distsync(t, "ls", "--store", url)
		if list.status != 0 || list.stderr != "" {
			t.Fatalf("ls: %+v", list)
		}
		if !utf8.ValidString(list.stdout) || strings.ContainsAny(list.stdout, "\x1b\u202e\u009b") {
			t.Errorf("what is dangerous is printed: %q", list.stdout)
		}
		for name, want := range map[string][]string{
			"orders:42":                   {"exclusive", "web-1/77/abc", "1", "s"},
			"prices":                      {"read", "-1/", "+1", "2"},
			"stock":                       {"write", "cron-1/5/def"},
			"gpu":                         {"permits", "3/5"},
			"report":                      {"exclusive", "web-1/77/abc", "1"},
			`"\x1b[31m\u202ered\u009b\n"`: {"exclusive"},
			`"bad\xff"`:                   {"exclusive"},
		} {
			line := lineOf(list.stdout, name)
			for _, part := range want {
				if !strings.Contains(strings.TrimPrefix(line, name), part) {
					t.Errorf("ls: %q lacks %q", line, part)
				}
			}
		}
		if fields := strings.Fields(lineOf(list.stdout, "report")); fields[len(fields)-1] != "1" ||
			len(fields) != 6 {
			t.Errorf("ls: in line for the fair lock: %q", fields)
		}

		locks := lines[lockJSON](t, inside(t.Context(), "ls", "--store", url, "--json").stdout)
		var names []string
		for _, l := range locks {
			name := l.Name
			if l.Base64 != nil {
				name = string(l.Base64)
			}
			names = append(names, name)
		}
		slices.Sort(names)
		if want := []string{nasty, "bad\xff", "gpu", "orders:42", "prices", "report",
			"stock"}; !slices.Equal(names, want) {
			t.Errorf("ls --json: %q, want %q", names, want)
		}

		one := inside(t.Context(), "ls", "--store", url, "orders:")
		if strings.Count(one.stdout, "\n") != 2 || !strings.Contains(one.stdout, "orders:42") {
			t.Errorf("ls orders: %+v", one)
		}
		none := inside(t.Context(), "ls", "--store", url, "none\x1b")
		if none.status != 0 || none.stdout != "" ||
			none.stderr != `nobody holds a lock whose name begins with "none\x1b"`+"\n" {
			t.Errorf("ls none: %+v", none)
		}

		show := inside(t.Context(), "show", "--store", url, "prices", "report", nasty, "nobody's")
		for _, want := range []string{"prices: read, 2 hold it\n", "web-1/77/abc:", "cron-1/5/def:",
			"IN LINE", "late-1/9/ghi:", "\n\n\"nobody's\": nobody has it\n"} {
			if want = strings.ReplaceAll(want, `"nobody's"`,
				"nobody's"); !strings.Contains(show.stdout, want) {
				t.Errorf("show lacks %q:\n%s", want, show.stdout)
			}
		}
		if show.status != 0 || strings.ContainsAny(show.stdout, "\x1b\u202e\u009b") {
			t.Errorf("show: %+v", show)
		}
		shown := lines[lockJSON](t,
			inside(t.Context(), "show", "--json", "--store", url, "gpu", "orders:42", "nobody's").
				stdout)
		if len(shown) != 3 {
			t.Fatalf("show --json: %+v", shown)
		}
		gpu, orders, free := shown[0], shown[1], shown[2]
		if gpu.Limit != 5 || len(gpu.Holders) != 2 ||
			gpu.Holders[0].Count+gpu.Holders[1].Count != 3 || gpu.Kind != "permits" {
			t.Errorf("show --json gpu: %+v", gpu)
		}
		if h := orders.Holders[0]; h.Client != "web-1/77/abc" || h.Count != 1 ||
			h.Remaining == nil || *h.Remaining <= 0 || *h.Remaining > 64 {
			t.Errorf("show --json orders:42: %+v", h)
		}
		if len(free.Holders) != 0 || free.Line == nil {
			t.Errorf("show --json of a free lock: %+v", free)
		}

		completed := inside(t.Context(), "__complete", "--store", url, "show", "or")
		if completed.stdout != "orders:42\n:4\n" {
			t.Errorf("completion: %+v", completed)
		}
	})
}

// lineOf returns the line that begins with a name.
func lineOf(text, name string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name+" ") {
			return line
		}
	}
	return ""
}

// A sink is where a command writes that is still running.
type sink struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// Holders that come and go are reported in order, and at once where the store notifies of releases.
func TestWatch(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, url string) {
		ctx := t.Context()
		web, cron := client(t, url, dlock.WithClientID("web-1")),
			client(t, url, dlock.WithClientID("cron-1"))
		first := must(t)(web.Locker("orders:42").Acquire(ctx))

		watching, stop := context.WithCancel(ctx)
		out, ended := new(sink), make(chan int, 1)
		args := []string{"watch", "orders:42", "gpu", "--json", "--store", url, "--every", "50ms"}
		go func() { ended <- execute(watching, args, strings.NewReader(""), out, out) }()
		saw := func(what string) {
			t.Helper()
			testservers.Until(t, what, func() bool {
				for _, e := range lines[event](t, out.String()) {
					text := e.Name + " " + e.Event
					if e.Holder != nil {
						text += " " + e.Holder.Client
					}
					if text == what {
						return true
					}
				}
				return false
			})
		}
		saw("orders:42 holds web-1")
		saw("gpu free")
		if err := first.Release(ctx); err != nil {
			t.Fatal(err)
		}
		saw("orders:42 gone web-1")
		saw("orders:42 free")
		// its lease runs out
		must(t)(cron.Locker("orders:42").Acquire(ctx, dlock.FixedLease(time.Second)))
		saw("orders:42 acquired cron-1")
		permits := must(t)(web.Semaphore("gpu", 3).Acquire(ctx, 2))
		testservers.Until(t, "permits are out", func() bool {
			return strings.Contains(out.String(), `"kind":"permits","count":2`)
		})
		saw("orders:42 gone cron-1")
		if err := permits.Release(ctx); err != nil {
			t.Fatal(err)
		}
		testservers.Until(t, "permits are back", func() bool {
			return slices.ContainsFunc(lines[event](t, out.String()), func(e event) bool {
				return e.Name == "gpu" && e.Event == "gone"
			})
		})
		stop()
		if status := <-ended; status != 0 {
			t.Errorf("status %d: %s", status, out)
		}
		for _, e := range lines[event](t, out.String()) {
			if e.Event == "error" || e.Time.IsZero() {
				t.Errorf("%+v", e)
			}
		}
	})
}

// A user who names a job is told the name of the lock that its adapter uses.
func TestNameOfAJob(t *testing.T) {
	t.Parallel()
	const says = "distsync: nobody has tick, but somebody has gocron:tick\n"
	anywhere(t, func(t *testing.T, url string) {
		watching, stop := context.WithCancel(t.Context())
		events, hints, ended := new(sink), new(sink), make(chan int, 1)
		args := []string{"watch", "tick", "--store", url, "--every", "50ms"}
		go func() { ended <- execute(watching, args, strings.NewReader(""), events, hints) }()
		testservers.Until(t, "it is watched", func() bool {
			return strings.Contains(events.String(), "free")
		})
		web := client(t, url)
		must(t)(web.Locker("gocron:tick").Acquire(t.Context()))
		testservers.Until(t, "the watcher is told", func() bool { return hints.String() == says })

		for _, args := range [][]string{{"show", "tick"}, {"unlock", "--force", "--yes", "tick"}} {
			if got := inside(t.Context(), append(args, "--store", url)...); got.status != 0 ||
				got.stderr != says {
				t.Errorf("%q: %+v", args, got)
			}
			for _, flag := range []string{"--json", "--quiet"} {
				if got := inside(t.Context(),
					append(args, "--store", url, flag)...); got.status != 0 || got.stderr != "" {
					t.Errorf("%q %s: %+v", args, flag, got)
				}
			}
		}
		must(t)(web.Locker("tick").Acquire(t.Context()))
		if got := inside(t.Context(), "show", "tick", "--store", url); got.stderr != "" {
			t.Errorf("show of one that is held: %+v", got)
		}
		stop()
		if status := <-ended; status != 0 || hints.String() != says {
			t.Errorf("watch: status %d, %q", status, hints)
		}
	})
	// A user who may not look at other names is told nothing of them, and that is no failure.
	server := testservers.Redis(t)
	server.Do("ACL", "SETUSER", "narrow", "on", ">secret", "~tick", "~*{tick}*", "&*", "+@all")
	for _, args := range [][]string{{"show", "tick"}, {"unlock", "--force", "--yes", "tick"}} {
		url := "redis://narrow:secret@" + server.Addr
		got := inside(t.Context(), append(args, "--store", url)...)
		if got != (result{stdout: "tick: nobody has it\n"}) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// Releases of each kind are told of without a look: the next one would be an hour later.
func TestWatchHears(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, url string) {
		ctx := t.Context()
		web := client(t, url)
		holds := map[string]*dlock.Hold{
			"lock":  must(t)(web.Locker("lock").Acquire(ctx)),
			"write": must(t)(web.RWLocker("write").Writer().Acquire(ctx)),
			"read":  must(t)(web.RWLocker("read").Reader().Acquire(ctx)),
			"gpu":   must(t)(web.Semaphore("gpu", 3).Acquire(ctx, 2)),
		}
		watching, stop := context.WithCancel(ctx)
		out, ended := new(sink), make(chan int, 1)
		args := append([]string{"watch", "--store", url, "--every", "1h"},
			slices.Collect(maps.Keys(holds))...)
		go func() { ended <- execute(watching, args, strings.NewReader(""), out, out) }()
		for name, h := range holds {
			testservers.Until(t, name+" is watched", func() bool {
				return strings.Contains(out.String(), "  "+name+"  holds  ")
			})
			if err := h.Release(ctx); err != nil {
				t.Fatal(err)
			}
			testservers.Until(t, name+" is gone", func() bool {
				return strings.Contains(out.String(), "  "+name+"  gone  ")
			})
		}
		stop()
		if status := <-ended; status != 0 {
			t.Errorf("status %d: %s", status, out)
		}
	})
}

// Waiters in line are reported, too, as is a store that stops answering and answers again.
func TestWatchLineAndStore(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	ctx := t.Context()
	web := client(t, url)
	hold := must(t)(web.FairLocker("report").Acquire(ctx))
	watching, stop := context.WithCancel(ctx)
	out, ended := new(sink), make(chan int, 1)
	args := []string{
		"watch", "report", "--store", url, "--every", "50ms", "--store-timeout", "500ms",
	}
	go func() { ended <- execute(watching, args, strings.NewReader(""), out, out) }()
	saw := func(what string) {
		t.Helper()
		testservers.Until(t, what, func() bool { return strings.Contains(out.String(), what) })
	}
	saw("report  holds  ")

	waiting, giveUp := context.WithCancel(ctx)
	waited := make(chan error, 1)
	late := client(t, url, dlock.WithClientID("late\x1b"))
	go func() { waited <- late.FairLocker("report").LockContext(waiting) }()
	saw(`report  queued  "late\x1b:`)
	giveUp()
	<-waited
	saw(`report  unqueued  "late\x1b:`)

	server.Stop()
	saw("report  error  ")
	server.Cont()
	saw("report  again\n")
	stop()
	if status := <-ended; status != 0 {
		t.Errorf("status %d: %s", status, out)
	}
	if err := hold.Release(ctx); err != nil {
		t.Error(err)
	}
}

// Locks of all kinds can be taken away.
func TestUnlock(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, url string) {
		web := cluttered(t, url)
		for _, c := range []struct {
			name    string
			holders int
		}{{"orders:42", 1}, {"prices", 2}, {"stock", 1}, {"gpu", 2}, {"report", 1},
			{"nobody's", 0}} {
			got := inside(t.Context(), "unlock", "--force", "--yes", "--json", "--store", url,
				c.name)
			if got.status != 0 {
				t.Errorf("%s: %+v", c.name, got)
				continue
			}
			u := lines[unlocked](t, got.stdout)[0]
			if u.Name != c.name || u.Released != (c.holders > 0) || len(u.Holders) != c.holders {
				t.Errorf("%s: %s, want %d holders", c.name, got.stdout, c.holders)
			}
			if l, err := web.Inspect(t.Context(), c.name); err != nil || len(l.Holders) > 0 {
				t.Errorf("%s is held still: %+v, %v", c.name, l, err)
			}
		}
		must(t)(web.Locker("orders:43").Acquire(t.Context(), dlock.FixedLease(time.Minute)))
		got := inside(t.Context(), "unlock", "--force", "--yes", "--store", url, "orders:43")
		if !strings.HasPrefix(got.stdout, "orders:43: taken from web-1/77/abc:") ||
			got.status != 0 || got.stderr != "" {
			t.Errorf("%+v", got)
		}
		got = inside(t.Context(), "unlock", "--force", "--yes", "--store", url, "orders:43")
		if got.stdout != "orders:43: nobody has it\n" || got.status != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// On Redis and Valkey a name stays a semaphore's when all permits are back. A user who looks is
// told so, and can end it.
func TestNameOfASemaphore(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, url string) {
		flags := func(args ...string) []string { return append(args, "--store", url) }
		as := func(kind ...string) result {
			return distsync(t, slices.Concat(flags("run", "f"), kind, []string{"--", "true"})...)
		}
		if got := as("--permits", "3"); got != (result{}) {
			t.Fatalf("the slip: %+v", got)
		}
		if strings.HasPrefix(url, "etcd") || strings.HasPrefix(url, "postgres") {
			// These keep nothing of a semaphore that nobody uses.
			if got := inside(t.Context(),
				flags("unlock", "--force", "--forget", "--yes",
					"f")...); got.stdout != "f: nobody has it\n" {
				t.Errorf("nothing to forget: %+v", got)
			}
			if got := as(); got != (result{}) {
				t.Errorf("a lock of that name: %+v", got)
			}
			return
		}

		const says = "f: nobody has it, but the store has the number 3 there: "
		got := as()
		if got.status != exitUsage || !strings.Contains(got.stderr, says) ||
			strings.Contains(got.stderr, "script") {
			t.Errorf("a lock of that name: %+v", got)
		}
		if got := inside(t.Context(), flags("show", "f")...); got.status != 0 ||
			!strings.HasPrefix(got.stdout, says) {
			t.Errorf("show: %+v", got)
		}
		if got := inside(t.Context(), flags("ls", "f")...); got.status != 0 || got.stdout != "" {
			t.Errorf("ls: %+v", got)
		}
		got = inside(t.Context(), flags("unlock", "--force", "--yes", "f")...)
		if got.status != 0 || !strings.HasPrefix(got.stdout, says) ||
			!strings.Contains(got.stdout, "--forget") {
			t.Errorf("unlock: %+v", got)
		}
		if got := as(); got.status != exitUsage {
			t.Errorf("a lock of that name, when nothing was said of forgetting: %+v", got)
		}

		must(t)(client(t, url).Semaphore("f", 3).
			Acquire(t.Context(), 2, dlock.FixedLease(time.Minute)))
		got = inside(t.Context(), flags("unlock", "--force", "--forget", "--yes", "--json", "f")...)
		if u := lines[unlocked](t, got.stdout); got.status != 0 || !u[0].Released ||
			!u[0].Forgotten || len(u[0].Holders) != 1 {
			t.Errorf("unlock --forget: %+v", got)
		}
		if got := inside(t.Context(), flags("show", "f")...); got.stdout != "f: nobody has it\n" {
			t.Errorf("show, when it is forgotten: %+v", got)
		}
		if got := as(); got != (result{}) {
			t.Errorf("a lock of that name, when it is forgotten: %+v", got)
		}
	})
}

// A number may belong to another program. It can't be told from a semaphore's, so it isn't deleted
// by mistake.
func TestNumberThatIsNoLock(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	for _, number := range []string{"1", "0", "-2"} {
		server.Do("SET", "hits", number)
		got := inside(t.Context(), "show", "--store", url, "hits")
		if got.status != 0 || !strings.Contains(got.stdout, "data of another program") {
			t.Errorf("show of %s: %+v", number, got)
		}
		if got := inside(t.Context(), "unlock", "--force", "--yes", "--store", url,
			"hits"); got.status != 0 || server.Do("GET", "hits") != number {
			t.Errorf("unlock of %s: %+v", number, got)
		}
		got = inside(t.Context(), "unlock", "--force", "--forget", "--yes", "--store", url, "hits")
		if got.status != 0 || got.stdout != "hits: its number was deleted\n" ||
			server.Do("EXISTS", "hits") != "0" {
			t.Errorf("unlock --forget of %s: %+v", number, got)
		}
	}
}

// A semaphore isn't forgotten if a client has got a permit since the look that found none.
func TestForgetsNothingInUse(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"redis", "valkey"} {
		url := scheme + "://" + testservers.Redis(t).Addr
		one := client(t, url).Semaphore("f", 1)
		must(t)(one.Acquire(t.Context(), 1, dlock.FixedLease(time.Minute)))
		g := &global{store: url, timeout: testservers.Patience}
		err := g.with(t.Context(), func(s *store, c *dlock.Client) error {
			if done, err := s.forget(t.Context(), "f"); done || err != nil {
				t.Errorf("%s: it is forgotten: %v, %v", scheme, done, err)
			}
			l, err := c.Inspect(t.Context(), "f")
			if len(l.Holders) != 1 || l.Limit != 1 {
				t.Errorf("%s: %+v", scheme, l)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// The first in line for a fair lock has it when its holder is robbed of it, not only at its next
// look.
func TestUnlockFair(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, url string) {
		ctx := t.Context()
		web := client(t, url)
		must(t)(web.FairLocker("report").Acquire(ctx, dlock.FixedLease(time.Minute)))
		late := client(t, url, dlock.WithClientID("late"))
		waited := make(chan error, 1)
		go func() { waited <- late.FairLocker("report").LockContext(ctx) }()
		testservers.Until(t, "one stands in line", func() bool {
			l, err := web.Inspect(ctx, "report")
			return err == nil && len(l.Line) == 1
		})
		got := inside(ctx, "unlock", "--force", "--yes", "--store", url, "report")
		now, err := web.Inspect(ctx, "report")
		if got.status != 0 || err != nil || len(now.Holders) != 1 ||
			now.Holders[0].Client != "late" {
			t.Errorf("%+v; then %+v, %v", got, now, err)
		}
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

// A lock isn't taken away by mistake.
func TestUnlockRefuses(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	url := "redis://" + server.Addr
	hold := must(t)(client(t, url).Locker("n").Acquire(t.Context()))
	for want, args := range map[string][]string{
		"--force":     {"unlock", "n"},
		"add --force": {"unlock", "--yes", "n"},
		"--yes":       {"unlock", "--force", "n"},
		"arg":         {"unlock", "--force", "--yes"},
		"empty":       {"unlock", "--force", "--yes", ""},
	} {
		got := distsyncWith(t, []string{"DISTSYNC_STORE=" + url, "DISTSYNC_FORCE=true",
			"DISTSYNC_YES=true"}, args...)
		if got.status != exitUsage || !strings.Contains(got.stderr, want) || got.stdout != "" {
			t.Errorf("%q: %+v, want status %d and %q", args, got, exitUsage, want)
		}
	}
	server.Do("SET", "text", "precious")
	got := inside(t.Context(), "unlock", "--force", "--yes", "--store", url, "text")
	if got.status != exitFailed || server.Do("GET", "text") != "precious" {
		t.Errorf("what isn't a lock: %+v", got)
	}
	if err := hold.Release(t.Context()); err != nil {
		t.Errorf("the lock is gone: %v", err)
	}
}

// A user without permission to look is told so. Output that can't be written counts as a failure.
func TestNotAllowed(t *testing.T) {
	t.Parallel()
	server := testservers.Redis(t)
	server.Do("ACL", "SETUSER", "blind", "on", ">secret", "~lock:*", "&*", "+@all", "-scan")
	url := "redis://blind:secret@" + server.Addr
	for _, args := range [][]string{{"ls"}, {"show", "n"}, {"unlock", "--force", "--yes", "n"}} {
		got := inside(t.Context(), append(args, "--store", url)...)
		if got.status != exitFailed || got.stdout != "" ||
			!strings.Contains(got.stderr, "permission") || strings.Contains(got.stderr, "secret") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	server.Do("HSET", "lock:n", "a:1", "1")
	server.Do("PEXPIRE", "lock:n", "60000")
	for _, args := range [][]string{
		{"ls", "lock:"}, {"ls", "--json"}, {"show", "lock:n"}, {"watch", "lock:n"}, {"doctor"},
		{"unlock", "--force", "--yes", "lock:n"},
	} {
		var stderr bytes.Buffer
		status := execute(t.Context(), append(args, "--store", "redis://"+server.Addr),
			strings.NewReader(""), full{}, &stderr)
		if status != exitFailed || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%q: status %d, %s", args, status, &stderr)
		}
	}
}

// A store that stops answering in the middle counts as one that can't be reached.
func TestHangs(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"redis", "valkey"} {
		server := testservers.Redis(t)
		g := &global{store: scheme + "://" + server.Addr, timeout: 500 * time.Millisecond}
		err := g.with(t.Context(), func(s *store, c *dlock.Client) error {
			server.Stop()
			defer server.Cont()
			if _, err := g.inspect(t.Context(), s, c, "n"); statusOf(err) != exitUnavailable {
				t.Errorf("show: %v", err)
			}
			cmd := newList(g)
			cmd.SetContext(t.Context())
			return g.list(cmd, s, c, "")
		})
		if statusOf(err) != exitUnavailable {
			t.Errorf("ls: %v", err)
		}
	}
}

// full is a disk that is.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

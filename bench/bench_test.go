package main

import (
	"encoding/xml"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// The test binary also runs as the processes that measure: see launch.
func TestMain(m *testing.M) {
	if spec, ok := os.LookupEnv(trialVariable); ok {
		os.Exit(runChild(spec))
	}
	flushes = "fsync=off" // otherwise a busy disk may take longer than a trial
	os.Exit(m.Run())
}

// small returns a workload with small trials, of the points that are marked as quick.
func small(w workload) workload {
	points := w.points
	w.points, w.atLeast = nil, 0
	for _, p := range points {
		if !p.quick {
			continue
		}
		p.trial = p.trial.or(w.common)
		p.trial.Duration = time.Second
		if p.trial.Job == jobLoop && p.processes == 0 && w.id != "W1" {
			// the trial has no contention
			p.trial.Duration = 300 * time.Millisecond
		}
		p.trial.Lease = 30 * time.Second // a busy machine may stop a process for seconds
		if p.cause != "" {
			p.trial.Duration, p.trial.Lease = 0, 2*time.Second // the lease must expire
		}
		p.trial.Goroutines = min(p.trial.Goroutines, 4)
		p.trial.Count = min(p.trial.Count, 20)
		p.trial.Pairs = min(p.trial.Pairs, 2)
		p.trial.Holds = [2]time.Duration{time.Millisecond, 2 * time.Millisecond}
		p.processes = min(p.processes, 2)
		p.jvms = min(p.jvms, 1)
		w.points = append(w.points, p)
	}
	return w
}

// needsServers skips the test if there are no servers. If servers are required, it makes the test
// fail.
func needsServers(t *testing.T, res result) {
	t.Helper()
	switch {
	case len(res.Missing) == 0:
	case os.Getenv("DISTSYNC_REQUIRE_SERVERS") == "1":
		t.Fatal(res.Missing)
	case !slices.ContainsFunc(res.Points, func(p pointResult) bool {
		return len(p.Contenders) > 0
	}):
		t.Skip("left out:", res.Missing)
	default:
		t.Log("left out:", res.Missing)
	}
}

// Each contender completes all workloads in which it takes part, and all figures are there.
func TestWorkloads(t *testing.T) {
	for _, w := range workloads {
		t.Run(w.id, func(t *testing.T) {
			measured := func() (result, error) { return measure(newLab(""), small(w), 1, true) }
			if w.id == "W18" { // it waits most of the time, so it runs concurrently with the others
				measured = begun(measured)
			}
			t.Parallel()
			res, err := measured()
			if err != nil {
				t.Fatal(err)
			}
			needsServers(t, res)
			for _, failure := range res.Failures {
				t.Error(failure)
			}
			for _, p := range res.Points {
				for _, s := range p.Contenders {
					checkFigures(t, w, p, s)
				}
			}
			checkPublished(t, res)
		})
	}
}

// begun calls f in another goroutine, and returns a function that waits for the result of f.
func begun(f func() (result, error)) func() (result, error) {
	var res result
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		res, err = f()
	}()
	return func() (result, error) {
		<-done
		return res, err
	}
}

// idleFloor says whether the floor of a store got nothing done, which may happen in such a short
// time.
func idleFloor(p pointResult, on store, ratioOf string) bool {
	return slices.ContainsFunc(p.Contenders, func(s standing) bool {
		return s.Store == on && (s.contender.role == floor || s.contender.role == solo) &&
			s.Median[ratioOf] == 0
	})
}

// hasTwin says whether the store has a twin with results at the point.
func hasTwin(p pointResult, on store, ratioOf string) bool {
	return slices.ContainsFunc(p.Contenders, func(s standing) bool {
		return s.Store == on && s.contender.role == twin && s.Median[ratioOf] > 0
	})
}

func checkFigures(t *testing.T, w workload, p pointResult, s standing) {
	t.Helper()
	if rate, ok := s.Median["rate"]; ok && rate == 0 && w.id != "W1" {
		return // in such a short time, others may hold the lock throughout
	}
	for _, m := range w.metrics {
		x, ok := s.Median[m.numbered(1)]
		switch {
		case m.key == "late" &&
			(s.Store == onEtcd || p.point.cause != killed && p.point.cause != paused):
			// the end of the lease isn't known, or the lease doesn't expire
		case m.key == "twin" && (s.contender.role != ours || !hasTwin(p, s.Store, w.ratioOf)):
		case m.key == "ratio" && idleFloor(p, s.Store, w.ratioOf):
		case m.key == "client" && s.contender.isJava():
		case !ok:
			t.Errorf("%s, %s %s: no %s", p.Label, s.Store, s.Name, m.title)
		case m.key == "clashes" && x != 0:
			t.Errorf("%s, %s %s: %v were inside together", p.Label, s.Store, s.Name, x)
		case m.key == "lost" && x != 0:
			t.Errorf("%s, %s %s: %v locks were lost", p.Label, s.Store, s.Name, x)
		}
	}
}

// The page has the tables once, and the charts are valid XML.
func checkPublished(t *testing.T, res result) {
	t.Helper()
	dir := t.TempDir()
	for range 2 {
		if err := (report{Results: []result{res}}).publish(dir); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "performance-tables.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(page), res.Title); n != 1 {
		t.Errorf("the title is on the page %d times", n)
	}
	c := res.workload.chart
	if c.name == "" {
		return
	}
	f, err := os.Open(filepath.Join(dir, "performance", c.name+".svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	series := 0
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			series++
		}
	}
	if series == 0 {
		t.Errorf("nothing is on chart %s", c.name)
	}
}

// Each series of a chart is a contender of its workload, and performance.md shows each chart.
func TestCharts(t *testing.T) {
	page, err := os.ReadFile("../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workloads {
		c := w.chart
		if c.name == "" {
			continue
		}
		if len(c.series) > len(styles) {
			t.Errorf("chart %s has %d series", c.name, len(c.series))
		}
		for _, key := range c.series {
			if !slices.ContainsFunc(contenders, func(c contender) bool {
				return c.key() == key && slices.Contains(c.in, w.id)
			}) {
				t.Errorf("chart %s shows %s, which isn't measured", c.name, key)
			}
		}
		if !slices.ContainsFunc(w.metrics, func(m metric) bool { return m.key == c.metric }) {
			t.Errorf("chart %s shows %q, which isn't measured", c.name, c.metric)
		}
		if !strings.Contains(string(page), "(performance/"+c.name+".svg)") {
			t.Errorf("performance.md doesn't show chart %s", c.name)
		}
	}
}

// Without Java, the Java contenders are left out, and the report says so.
func TestWithoutJava(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	w := workload8
	w.stores = nil
	res, err := measure(newLab(""), w, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Points) > 0 {
		t.Errorf("measured %v", res.Points)
	}
	var screen strings.Builder
	res.print(&screen)
	for where, text := range map[string]string{
		"screen": screen.String(),
		"page":   res.markdown(),
	} {
		if !strings.Contains(strings.ToLower(text), "left out: "+strings.ToLower(redissonName)) {
			t.Errorf("the %s does not say what is missing:\n%s", where, text)
		}
	}
	l := &lab{servers: map[store]string{onRedis: ""}}
	if l.has(contenderBy("Redis/Redisson")) || !l.has(contenderBy("Redis/dlock")) {
		t.Error("the wrong one is left out")
	}
}

// Usage counts the commands that clients send. The contenders that are compared with ours send as
// many as ours.
func TestUsage(t *testing.T) {
	const several = 3
	for _, server := range []struct {
		store   store
		start   func(testservers.TB, ...string) *testservers.Server
		pair    float64 // commands for a lock and an unlock
		members []string
	}{
		{onRedis, testservers.Redis, 2,
			[]string{"bare go-redis", "our scripts, bare", "redsync", "redislock", "dlock"}},
		{onValkey, testservers.Valkey, 2,
			[]string{"bare go-redis", "bare valkey-go", "our scripts, bare", "dlock"}},
		{onEtcd, testservers.Etcd, 2,
			[]string{"bare Txn", "concurrency", "our steps, bare", "dlock"}},
		{onPostgres, startPostgres, 2,
			[]string{"two UPDATEs", "our functions, bare", "lease table", "dlock"}},
		{onRedis, testservers.Redis, 2 * several, []string{"our scripts, one pipeline"}},
		{onRedis, testservers.Redis, 2, []string{"dlock, All"}}, // their names share a hash tag
		{onValkey, testservers.Valkey, 2 * several, []string{"our scripts, one pipeline"}},
		{onValkey, testservers.Valkey, 2, []string{"dlock, All"}}, // their names share a hash tag
	} {
		t.Run(string(server.store), func(t *testing.T) {
			t.Parallel()
			addr := server.start(t).Addr
			for _, name := range server.members {
				checkUsage(t, contenderBy(string(server.store)+"/"+name),
					place{addr: addr, names: several}, server.pair)
			}
		})
	}
}

func checkUsage(t *testing.T, c contender, p place, want float64) {
	t.Helper()
	p.lease, p.kind = time.Minute, c.kind
	// Keep-alives, and queries for other waiters, depend on the time. A slow machine has more of
	// them.
	c.scripted = append(slices.Clone(c.scripted), "ping", "pubsub|numsub", "pubsub|shardnumsub")
	sys, err := c.open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.close()
	lockers := make([]locker, 1)
	const n = 100
	use := func() usage {
		for range n {
			if err := lockEach(sys, []string{c.key()}, lockers); err != nil {
				t.Fatalf("%s: %v", c.key(), err)
			}
			if unlockEach(lockers) > 0 {
				t.Fatalf("%s: lost", c.key())
			}
		}
		u, err := look(c, p.addr)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before := use() // includes the commands for connecting
	after := use()
	// etcd counts its keep-alives together with commands.
	off := func() float64 { return math.Abs((after.commands-before.commands)/n - want) }
	for tries := 0; off() > 0.5 && tries < 10; tries++ {
		before, after = after, use()
	}
	if off() > 0.5 {
		t.Errorf("%s: %v commands for a lock and an unlock, want %v", c.key(),
			(after.commands-before.commands)/n, want)
	}
	if after.cpu <= 0 || after.cpu < before.cpu {
		t.Errorf("%s: the server's CPU was %v, then %v", c.key(), before.cpu, after.cpu)
	}
}

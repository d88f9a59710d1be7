package main

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"runtime"
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	var empty, h, other histogram
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Microsecond)
	}
	other.add(time.Hour)
	other.add(0)
	other.add(-1)
	h.merge(other)
	text, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var read histogram
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		of   histogram
		q    float64
		want time.Duration
	}{
		{empty, 0.5, 0}, {h, 0.5, 499 * time.Microsecond}, {h, 0.99, 991 * time.Microsecond},
		{h, 1, time.Hour}, {h, 0.001, 0},
		{read, 0.99, 991 * time.Microsecond},
	} {
		if got := c.of.quantile(c.q); math.Abs(float64(got-c.want)) > float64(c.want)/100 {
			t.Errorf("quantile(%v) = %v, want %v", c.q, got, c.want)
		}
	}
	if read.total != 1003 {
		t.Errorf("total %d", read.total)
	}
}

// The middle of a bucket differs from its durations by at most 1/128, and buckets are contiguous.
func TestBucket(t *testing.T) {
	last := -1
	for d := time.Duration(0); d < time.Hour; d += d/300 + 1 {
		b := bucket(d)
		if b != last && b != last+1 {
			t.Fatalf("bucket(%d) = %d after %d", d, b, last)
		}
		last = b
		if diff := math.Abs(float64(middle(b) - d)); diff > float64(d)/128 {
			t.Fatalf("%d is counted as %d", d, middle(b))
		}
	}
}

func TestJain(t *testing.T) {
	for _, c := range []struct {
		shares []int64
		want   float64
	}{
		{[]int64{5, 5, 5, 5}, 1}, {[]int64{8, 0, 0, 0}, 0.25}, {[]int64{1, 3}, 0.8},
	} {
		if got := jain(c.shares); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("jain(%v) = %v, want %v", c.shares, got, c.want)
		}
	}
	if got := jain([]int64{0, 0}); !math.IsNaN(got) {
		t.Errorf("jain of nothing = %v", got)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want float64
	}{
		{[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 2, 3}, 2.5}, {[]float64{math.NaN(), 7}, 7},
	} {
		if got := median(c.of); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.of, got, c.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median of nothing = %v", got)
	}
}

// Ratios relate results of the same round to the floor and the twin of the same store.
func TestCompare(t *testing.T) {
	at := func(s store, r role, rate float64) standing {
		return standing{
			Store: s, contender: contender{role: r}, Rounds: []values{{"rate": 1}, {"rate": rate}},
		}
	}
	all := []standing{
		at(onRedis, floor, 100), at(onRedis, twin, 80), at(onRedis, ours, 60),
		at(onEtcd, floor, 10), at(onEtcd, peer, 5),
	}
	failed := standing{Store: onRedis, Rounds: []values{{}, {}}}
	compare(workload{ratioOf: "rate"}, append(all, failed))
	for i, want := range []values{
		{"rate": 100, "ratio": 1}, {"rate": 80, "ratio": 0.8},
		{"rate": 60, "ratio": 0.6, "twin": 0.75}, {"rate": 10, "ratio": 1},
		{"rate": 5, "ratio": 0.5},
	} {
		got := all[i].Rounds[1]
		if len(got) != len(want) || got["ratio"] != want["ratio"] || got["twin"] != want["twin"] {
			t.Errorf("%d: %v, want %v", i, got, want)
		}
		if _, ok := all[i].Rounds[0]["ratio"]; ok {
			t.Errorf("%d: an earlier round was changed", i)
		}
	}
	if len(failed.Rounds[1]) > 0 {
		t.Errorf("a contender that failed has %v", failed.Rounds[1])
	}
}

// A critical section notices two parties inside, by their numbers or by the count of entries.
func TestCriticalSection(t *testing.T) {
	var s criticalSection
	if n := s.enter(1) + s.leave(1) + s.enter(2) + s.leave(2); n != 0 || s.count != 2 {
		t.Errorf("one after the other: %d clashes, count %d", n, s.count)
	}
	if n := s.enter(1) + s.enter(2) + s.leave(1) + s.leave(2); n == 0 {
		t.Error("two inside together: no clash")
	}
}

// openSystem is a lock that never excludes.
type openSystem struct{}

func (s openSystem) locker(string, int) (locker, error) { return s, nil }
func (openSystem) close()                               {}
func (openSystem) Lock(context.Context) error           { return nil }
func (openSystem) Unlock() error                        { return nil }

// A lock that doesn't exclude is found out, and a lock that excludes has no clashes.
func TestExclusion(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as in the benchmark
	closed, err := openMutexes(place{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sys   system
		clash bool
	}{{openSystem{}, true}, {closed, false}} {
		section, err := mapSection("")
		if err != nil {
			t.Fatal(err)
		}
		rep, err := loopFor(c.sys,
			trial{Name: "x", Naming: oneName, Goroutines: 4, Duration: 100 * time.Millisecond},
			section)
		if err != nil {
			t.Fatal(err)
		}
		clash := rep.Clashes > 0 || rep.Entries != section.count
		if clash != c.clash || rep.Entries == 0 {
			t.Errorf("%T: %d clashes, %d entries, count %d", c.sys, rep.Clashes, rep.Entries,
				section.count)
		}
	}
}

func TestFormat(t *testing.T) {
	m := metric{key: "x", decimals: 2}
	for x, want := range map[float64]string{
		0:       "0.00",
		1.236:   "1.24",
		-5:      "-5.00",
		123.4:   "123",
		1234.5:  "1,234",
		1234567: "1,234,567",
		12345:   "12,345",
	} {
		if got := m.format(values{"x": x}); got != want {
			t.Errorf("%v is written %q, want %q", x, got, want)
		}
	}
	if got := (metric{key: "x"}).format(values{"x": -1234567}); got != "-1,234,567" {
		t.Errorf("got %q", got)
	}
	of := metric{key: "share#"}
	if got := of.format(values{
		"share": 9, "share1": 60, "share2": 40, "share4": 1,
	}); got != "60 / 40" {
		t.Errorf("several are written %q", got)
	}
	if got := of.format(values{}); got != "–" {
		t.Errorf("none of several is written %q", got)
	}
	if got := m.format(values{}); got != "–" {
		t.Errorf("nothing is written %q", got)
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{
		0:       "0",
		0.25:    "0.25",
		64:      "64",
		1000:    "1k",
		2500:    "2.5k",
		1e6:     "1M",
		1834567: "1.83M",
	} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestAxis(t *testing.T) {
	for _, c := range []struct {
		figures   []float64
		low, high float64
		marks     int
	}{
		{[]float64{3, 870}, 1, 1000, 4},
		{[]float64{10}, 10, 100, 2},
		{[]float64{0.2, 0.93}, 0.1, 1, 2},
	} {
		a, marks := newAxis(c.figures, 100, 200)
		if a.low != c.low || a.high != c.high || len(marks) != c.marks {
			t.Errorf("%v: %v to %v, marks %v; want %v to %v, %d marks", c.figures, a.low, a.high,
				marks, c.low, c.high, c.marks)
		}
		for _, f := range c.figures {
			if at := a.place(f); at < 100 || at > 200 {
				t.Errorf("%v: %v is at %v", c.figures, f, at)
			}
		}
	}
}

// between replaces only the text between the markers.
func TestBetween(t *testing.T) {
	page := between("# Page\n", "W1", "First", "old\n")
	page = between(page, "W2", "Second", "other\n") + "tail\n"
	page = between(page, "W1", "First", "new\n")
	const want = "# Page\n\n## First\n\n<!-- bench:W1 -->\nnew\n<!-- /bench:W1 -->\n" +
		"\n## Second\n\n<!-- bench:W2 -->\nother\n<!-- /bench:W2 -->\ntail\n"
	if page != want {
		t.Errorf("got\n%s\nwant\n%s", page, want)
	}
}

// A delay passes bytes in order, and no earlier than their time.
func TestDelay(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go io.Copy(conn, conn)
		}
	}()
	const oneWay = 2 * time.Millisecond
	d, err := newDelay(echo.Addr().String(), oneWay)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	conn, err := net.Dial("tcp", d.addr())
	if err != nil {
		t.Fatal(err)
	}
	for i := range byte(20) {
		begin := time.Now()
		if _, err := conn.Write([]byte{i, i + 1}); err != nil {
			t.Fatal(err)
		}
		var back [2]byte
		if _, err := io.ReadFull(conn, back[:]); err != nil || back != [2]byte{i, i + 1} {
			t.Fatalf("%v came back for %v, %v", back, i, err)
		}
		if took := time.Since(begin); took < 2*oneWay {
			t.Errorf("a round trip took %v", took)
		}
	}
}

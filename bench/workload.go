package main

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A workload is a task that all contenders carry out. Its points are the conditions under which
// they do so.
type workload struct {
	id, title string
	about     string
	metrics   []metric // the columns of its table
	stores    []store
	java      bool          // Java programs take part
	common    trial         // the defaults of all points
	atLeast   time.Duration // minimum duration of a trial, even with -quick
	points    []point
	run       func(*lab, contender, point) (values, error)
	ratioOf   string // key of the metric whose ratios to the floor and the twin are computed
	chart     chart  // has no name if there is none
}

// A metric is a measured quantity, with its title in tables.
type metric struct {
	key      string // key in values; # stands for the number of a process
	title    string
	decimals int
}

// A point is one of the conditions under which a workload is measured.
type point struct {
	label string
	x     float64 // x in the chart; points with 0 are omitted
	quick bool    // tests measure it, too
	trial trial

	processes int           // the number of the contender's processes
	jvms      int           // number of additional processes, each a JVM that runs Redisson
	roundTrip time.Duration // time added to each round trip
	cause     cause         // why the leader stops leading
	on        []store       // stores to measure; if empty, all of the workload's
}

var workloads = []workload{workload1, workload2, workload3, workload4, workload5, workload6,
	workload7, workload8, workload9, workload10, workload11, workload12, workload13, workload14,
	workload15, workload16, workload17, workload18,
	workload19}

// jobs maps the name of each job to the function that a process runs for it.
var jobs map[string]func(*child) (measured, error)

const (
	jobLoop     = "loop"
	jobHolder   = "holder"
	jobWaiter   = "waiter"
	jobKeep     = "keep"
	jobCrowd    = "crowd"
	jobHolding  = "holding"
	jobMemory   = "memory"
	jobAwait    = "await"
	jobCampaign = "campaign"
)

func init() { // a composite literal would cause an initialization cycle
	jobs = map[string]func(*child) (measured, error){
		jobLoop:     loop,
		jobHolder:   handOver,
		jobWaiter:   takeOver,
		jobKeep:     keep,
		jobCrowd:    crowd,
		jobHolding:  holding,
		jobMemory:   inMemory,
		jobAwait:    await,
		jobCampaign: campaign,
	}
}

// A result holds the measurements of a workload.
type result struct {
	ID, Title, About string
	Metrics          []string
	Points           []pointResult
	Missing          []string // servers and programs that could not be started
	Failures         []string

	workload workload
}

// A pointResult holds the results of all contenders at one point.
type pointResult struct {
	Label      string
	Contenders []standing
	point      point
}

// A standing is a contender's result at a point.
type standing struct {
	Store  store
	Name   string
	Rounds []values
	Median values

	contender contender
}

// measure measures a workload in rounds. Each round measures every contender once, so that other
// load on the machine affects all of them alike.
func measure(l *lab, w workload, rounds int, quick bool) (result, error) {
	res := result{ID: w.id, Title: w.title, About: w.about, workload: w}
	for _, m := range w.metrics {
		res.Metrics = append(res.Metrics, m.title)
	}
	defer l.stop()
	res.Missing = l.start(w.stores...)
	if w.java {
		if err := l.findJava(); err != nil {
			res.Missing = append(res.Missing, err.Error())
		}
	}
	for _, p := range w.points {
		if p.jvms > 0 && l.java == "" {
			continue
		}
		p.trial = p.trial.or(w.common)
		if quick {
			p.trial.Duration = max(p.trial.Duration/5, w.atLeast)
		}
		at := pointResult{Label: p.label, point: p}
		for _, c := range contenders {
			if l.has(c) && c.takesPart(w, p) {
				at.Contenders = append(at.Contenders, standing{
					Store: c.store, Name: c.name, contender: c,
				})
			}
		}
		for range rounds {
			for i := range at.Contenders {
				s := &at.Contenders[i]
				v, err := measureOnce(l, w, s.contender, p)
				if err != nil {
					res.Failures = append(res.Failures,
						fmt.Sprintf("%s, %s: %v", p.label, s.contender.key(), err))
					v = values{}
				}
				s.Rounds = append(s.Rounds, v)
			}
			compare(w, at.Contenders)
		}
		for i := range at.Contenders {
			at.Contenders[i].Median = medians(at.Contenders[i].Rounds)
		}
		res.Points = append(res.Points, at)
	}
	return res, nil
}

// measureOnce makes one contender carry out one trial, on a store that nobody else uses.
func measureOnce(l *lab, w workload, c contender, p point) (values, error) {
	addr, end, err := l.delayed(c.store, p.roundTrip)
	if err != nil {
		return nil, err
	}
	defer end()
	p.trial.Contender, p.trial.Addr, p.trial.Server, p.trial.Name = c.key(), addr,
		l.servers[c.store], l.newName()
	if l.profiles != "" {
		name := strings.NewReplacer("/", "-", " ", "-", ",", "").
			Replace(w.id + " " + p.label + " " + c.key())
		p.trial.Profile = filepath.Join(l.profiles, name)
	}
	if err := flush(c.store, p.trial.Server); err != nil {
		return nil, err
	}
	if c.role == solo {
		p.trial.Goroutines, p.processes = 1, 1
	}
	v, err := w.run(l, c, p)
	// remove ratios and shares without a base
	maps.DeleteFunc(v, func(_ string, x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	return v, err
}

// compare computes the ratios of the last round. It divides each contender's metric by the
// [floor]'s and, for our locks, by the [twin]'s.
func compare(w workload, all []standing) {
	if w.ratioOf == "" {
		return
	}
	for _, s := range all {
		v := s.Rounds[len(s.Rounds)-1]
		for _, other := range all {
			if other.Store != s.Store {
				continue
			}
			base := other.Rounds[len(other.Rounds)-1][w.ratioOf]
			if _, ok := v[w.ratioOf]; !ok || base == 0 {
				continue
			}
			switch role := other.contender.role; {
			case role == floor, role == solo:
				v["ratio"] = v[w.ratioOf] / base
			case role == twin && s.contender.role == ours:
				v["twin"] = v[w.ratioOf] / base
			}
		}
	}
}

func medians(rounds []values) values {
	figures := make(map[string][]float64)
	for _, v := range rounds {
		for key, x := range v {
			figures[key] = append(figures[key], x)
		}
	}
	all := make(values)
	for key, list := range figures {
		if m := median(list); !math.IsNaN(m) {
			all[key] = m
		}
	}
	return all
}

// or returns t with its zero fields set from common. Job and Unpinned always come from common.
func (t trial) or(common trial) trial {
	t.Job, t.Unpinned = common.Job, common.Unpinned
	if t.Duration == 0 {
		t.Duration = common.Duration
	}
	if t.Lease == 0 {
		t.Lease = common.Lease
	}
	if t.Naming == "" {
		t.Naming = common.Naming
	}
	if t.Goroutines == 0 {
		t.Goroutines = common.Goroutines
	}
	if t.Inside == 0 {
		t.Inside = common.Inside
	}
	if t.Kind == plainLocks {
		t.Kind = common.Kind
	}
	return t
}

// describe returns a description of the machine and the versions of the programs.
func describe(l *lab) string {
	parts := []string{cpuModel(), goVersion()}
	if l.serverCPU == noCPU {
		parts = append(parts, "one CPU, or none that can be chosen: servers and clients share "+
			"it, so latencies mean little")
	} else {
		parts = append(parts, fmt.Sprintf("servers on CPU %d, clients on CPU %d", l.serverCPU,
			l.clientCPU))
	}
	parts = append(parts, packageVersions()...)
	parts = append(parts, slices.Sorted(maps.Keys(l.versions))...)
	return strings.Join(parts, "; ")
}

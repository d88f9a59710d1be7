package main

import "time"

var workload11 = workload{
	id: "W11", title: "Read-write: one name, empty critical sections",
	about: "The floor is the bare client, uncontended, in one goroutine, with a plain lock. “two inside” is a writer who wasn't alone, or an increment " +
		"that was lost. Each process has one RWLocker.",
	metrics: []metric{
		{"rate", "locks/s", 0}, {"ratio", "÷ floor alone", 2}, {"jain", "Jain", 3}, {"starved", "starved", 0}, {"p99", "p99 wait ms", 3},
		{"writer", "p99 wait of writers ms", 3}, {"longest", "longest wait ms", 0}, {"commands", "commands/lock", 3}, {"clashes", "two inside", 0},
	},
	stores:  []store{onRedis, onValkey, onEtcd},
	ratioOf: "rate",
	common:  trial{Job: jobLoop, Duration: 3 * time.Second, Lease: 30 * time.Second, Naming: oneName, Kind: bothSides},
	points: []point{
		{label: "64 readers in one process", quick: true, processes: 1, trial: trial{Goroutines: 64}},
		{label: "8 readers in each of 4 processes", quick: true, processes: 4, trial: trial{Goroutines: 8}},
		{label: "64 in one process, 10 % writes", quick: true, processes: 1, trial: trial{Goroutines: 64, Writes: 10}},
		{label: "8 in each of 4 processes, 10 % writes", quick: true, processes: 4, trial: trial{Goroutines: 8, Writes: 10}},
	},
	run:    runContended,
	charts: []chart{{name: "w11", title: "W11: locks a second ÷ floor alone", metric: "ratio", bars: true}},
}

var workload12 = workload{
	id: "W12", title: "Kinds, uncontended: lock and unlock, one goroutine, its own key",
	about:   "Beside the scripts of each kind, sent by the bare client.",
	metrics: workload1.metrics,
	stores:  []store{onRedis, onValkey},
	ratioOf: "rate",
	common:  trial{Job: jobLoop, Duration: time.Second, Lease: 30 * time.Second, Naming: ownNames, Goroutines: 1, Endless: true},
	points: []point{
		{label: "plain", trial: trial{}},
		{label: "fenced", quick: true, trial: trial{Kind: fencedLocks}},
		{label: "read", quick: true, trial: trial{Kind: readLocks}},
		{label: "write", trial: trial{Kind: writeLocks}},
	},
	run:    workload1.run,
	charts: []chart{{name: "w12", title: "W12: uncontended pairs a second ÷ the same scripts, bare", metric: "twin", bars: true}},
}

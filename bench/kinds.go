package main

import "time"

var workload11 = workload{
	id: "W11", title: "Read-write: one name, empty critical sections",
	about: "The floor is the bare client, uncontended, in one goroutine, with a plain lock. “two " +
		"inside” is a writer who wasn't alone, or an increment that was lost. Each process has " +
		"one RWLocker.",
	metrics: []metric{
		{"rate", "locks/s", 0}, {"ratio", "÷ floor alone", 2}, {"jain", "Jain", 3},
		{"starved", "starved", 0}, {"p99", "p99 wait ms", 3},
		{"writer", "p99 wait of writers ms", 3}, {"longest", "longest wait ms", 0},
		{"commands", "commands/lock", 3}, {"clashes", "two inside", 0},
	},
	stores:  []store{onRedis, onValkey, onEtcd, onPostgres},
	ratioOf: "rate",
	common: trial{
		Job: jobLoop, Duration: 3 * time.Second, Lease: 30 * time.Second, Naming: oneName,
		Kind: bothSides,
	},
	points: []point{
		{label: "64 readers in one process", quick: true, processes: 1,
			trial: trial{Goroutines: 64}},
		{label: "8 readers in each of 4 processes", quick: true, processes: 4,
			trial: trial{Goroutines: 8}},
		{label: "64 in one process, 10 % writes", quick: true, processes: 1,
			trial: trial{Goroutines: 64, Writes: 10}},
		{label: "8 in each of 4 processes, 10 % writes", quick: true, processes: 4,
			trial: trial{Goroutines: 8, Writes: 10}},
	},
	run: runContended,
}

var workload12 = workload{
	id: "W12", title: "Kinds, uncontended: lock and unlock, one goroutine, its own key",
	about:   "Beside the scripts of each kind, sent by the bare client.",
	metrics: workload1.metrics,
	stores:  []store{onRedis, onValkey},
	ratioOf: "rate",
	common: trial{
		Job: jobLoop, Duration: time.Second, Lease: 30 * time.Second, Naming: ownNames,
		Goroutines: 1, Endless: true,
	},
	points: []point{
		{label: "plain", trial: trial{}},
		{label: "fenced", quick: true, trial: trial{Kind: fencedLocks}},
		{label: "read", quick: true, trial: trial{Kind: readLocks}},
		{label: "write", trial: trial{Kind: writeLocks}},
		{label: "fair", quick: true, trial: trial{Kind: fairLocks}},
		{label: "a permit", quick: true, trial: trial{Kind: permits}},
	},
	run: runPairs,
}

var workload13 = workload{
	id: "W13", title: "Permits: 16 of one name, one each, empty critical sections",
	about: "The floor is the bare client, uncontended, in one goroutine, with a plain lock. “too " +
		"many inside” counts who found more than 16 there. Redisson takes part with its " +
		"RPermitExpirableSemaphore, a thread for each goroutine.",
	metrics: []metric{
		{"rate", "permits/s", 0}, {"ratio", "÷ floor alone", 2}, {"jain", "Jain", 3},
		{"processes", "Jain, processes", 3}, {"starved", "starved", 0},
		{"p99", "p99 wait ms", 3}, {"longest", "longest wait ms", 0},
		{"commands", "commands/permit", 3}, {"clashes", "too many inside", 0},
	},
	stores:  []store{onRedis, onValkey, onEtcd, onPostgres},
	ratioOf: "rate",
	java:    true,
	common: trial{
		Job: jobLoop, Duration: 3 * time.Second, Lease: 30 * time.Second, Naming: oneName,
		Kind: permits,
	},
	points: []point{
		{label: "64 goroutines in one process", quick: true, processes: 1,
			trial: trial{Goroutines: 64}},
		{label: "16 in each of 4 processes", quick: true, processes: 4,
			trial: trial{Goroutines: 16}},
	},
	run: runContended,
}

var workload14 = workload{
	id: "W14", title: "Permits in memory: 16 of them, beside a channel and x/sync/semaphore",
	about:   "Not pinned. 1 goroutine is uncontended.",
	metrics: workload7.metrics,
	stores:  []store{onMemory},
	ratioOf: "ns",
	points: []point{
		{label: "1 goroutine", x: 1, quick: true, trial: trial{Goroutines: 1}},
		{label: "64 goroutines", x: 64, quick: true, trial: trial{Goroutines: 64}},
	},
	common: trial{
		Job: jobMemory, Unpinned: true, Duration: time.Second, Lease: 30 * time.Second,
		Kind: permits,
	},
	run: runOne,
}

package main

import "time"

// turns lists the metrics of workloads in which a holder stays in the critical section for a while.
var turns = []metric{
	{"rate", "turns/s", 0}, {"share#", "share of each, %", 1}, {"processes", "Jain, processes", 3},
	{"longest#", "longest wait of each, ms", 0}, {"clashes", "two inside", 0},
}

const perTurn = 5 * time.Millisecond

var workload8 = workload{
	id:    "W8",
	title: "Turns beside Java: one key, 5 ms inside, again and again, one thread in each process",
	about: "Clients are not pinned: they are to race. A process of the contender beside JVMs " +
		"with Redisson, which is how Java programs lock: the contender's share is the first one. " +
		"Redisson beside itself shows what the others are used to.",
	metrics: turns,
	stores:  []store{onRedis, onValkey},
	java:    true,
	common: trial{Job: jobLoop, Duration: 20 * time.Second, Lease: 30 * time.Second,
		Naming:     oneName,
		Goroutines: 1, Inside: perTurn, Unpinned: true},
	points: []point{
		{label: "beside a JVM", x: 1, quick: true, processes: 1, jvms: 1},
		{label: "beside 2 JVMs", x: 2, processes: 1, jvms: 2},
		{label: "beside 4 JVMs", x: 4, quick: true, processes: 1, jvms: 4},
	},
	run: runContended,
}

var workload9 = workload{
	id: "W9", title: "Turns: one key, several processes, 5 ms inside, again and again",
	about: "As W8, among Go processes. With fixed leases nothing is renewed, nor handed over " +
		"inside a process.",
	metrics: turns,
	stores:  []store{onRedis, onValkey},
	common: trial{Job: jobLoop, Duration: 20 * time.Second, Lease: 30 * time.Second,
		Naming: oneName,
		Inside: perTurn, Unpinned: true},
	points: []point{
		{label: "2 processes, a goroutine each", quick: true, processes: 2,
			trial: trial{Goroutines: 1}},
		{label: "2 processes, 4 goroutines each", quick: true, processes: 2,
			trial: trial{Goroutines: 4}},
		{label: "8 processes, 4 goroutines each", processes: 8, trial: trial{Goroutines: 4}},
	},
	run: runContended,
}

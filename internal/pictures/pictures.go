package main

var sequences = map[string]sequence{
	"lease": {
		about: "A acquires a lock with token 33 and renews its lease. A is paused for " +
			"longer than the lease. The lease ends, B acquires the lock with token 34 and " +
			"writes. A wakes up and is told that the lock is lost. A's late write with token 33 " +
			"is refused.",
		lanes: []string{"holder A", "store", "holder B", "account 7"},
		store: 1,
		small: true,
		steps: []step{
			{from: 0, to: 1, text: "acquire", lease: "a"},
			{from: 1, to: 0, text: "token 33", holds: "a"},
			{from: 0, to: 1, text: "renew"},
			{from: 0, to: 3, text: "write with token 33: accepted"},
			{from: 0, to: 0, text: "A is paused"},
			{from: 1, to: 1, text: "the lease ends", lease: "-"},
			{from: 2, to: 1, text: "acquire", lease: "b"},
			{from: 1, to: 2, text: "token 34", holds: "b"},
			{from: 2, to: 3, text: "write with 34"},
			{from: 0, to: 0, text: "A goes on: ctx says lost", ends: true},
			{from: 0, to: 3, text: "late write with token 33: refused", refused: true},
		},
	},
	"way": {
		title: "The way of a lock through client and store",
		about: "A goroutine calls Do. Its call joins the client's queue for that name. The " +
			"first in the queue asks the store, hears that another holds the lock, and " +
			"subscribes. A message tells of the release. It acquires the lock, the function " +
			"runs, the watchdog renews the lease, the function returns, and the release wakes " +
			"the next client.",
		lanes: []string{"your goroutine", "client", "store"},
		store: 2,
		steps: []step{
			{from: 0, to: 1, text: "Do(ctx, fn): join the queue for this name", lease: "b"},
			{from: 1, to: 2, text: "first in the queue: acquire"},
			{from: 2, to: 1, text: "held by another, 21 s left"},
			{from: 1, to: 2, text: "subscribe, and ask once more"},
			{from: 2, to: 2, text: "the other releases it", lease: "-"},
			{from: 2, to: 1, text: "message: released"},
			{from: 1, to: 2, text: "acquire", lease: "a"},
			{from: 1, to: 0, text: "fn(ctx) runs", holds: "a"},
			{from: 1, to: 2, text: "watchdog: renew, every third of the lease"},
			{from: 0, to: 1, text: "fn returns", ends: true},
			{from: 1, to: 2, text: "release; it wakes the next client", lease: "-"},
			{from: 1, to: 0, text: "nil, or why it failed"},
		},
	},
	"handover": {
		title: "Hand-over inside a process",
		about: "Goroutine 1 holds the lock. Goroutine 2 and another process wait. Goroutine 1 " +
			"unlocks, and the client gives the lock to goroutine 2 without asking the " +
			"store. After 10 milliseconds at most the client releases the lock in the store, and " +
			"the other process acquires it.",
		lanes: []string{"goroutine 1", "goroutine 2", "their client", "store", "other process"},
		store: 3,
		steps: []step{
			{from: 2, to: 3, text: "acquire", lease: "a"},
			{from: 2, to: 0, text: "you have it", holds: "a"},
			{from: 1, to: 2, text: "Lock: wait"},
			{from: 4, to: 3, text: "wait"},
			{from: 0, to: 2, text: "Unlock", ends: true},
			{from: 2, to: 1, text: "you have it", holds: "a"},
			{from: 1, to: 1, text: "the store isn't asked, for up to 10 ms"},
			{from: 1, to: 2, text: "Unlock", ends: true},
			{from: 2, to: 3, text: "release", lease: "-"},
			{from: 3, to: 4, text: "message"},
			{from: 4, to: 3, text: "acquire", lease: "b", holds: "b"},
			{from: 3, to: 3},
		},
	},
	"fair": {
		title: "A fair lock: the store keeps the line",
		about: "A holds the lock. B asks and gets the first place, C the second. A releases the " +
			"lock. In the same step the store gives it to B and tells B. B releases it, and the " +
			"store gives it to C.",
		lanes: []string{"A", "store", "B", "C"},
		store: 1,
		steps: []step{
			{from: 0, to: 1, text: "acquire", lease: "a", holds: "a"},
			{from: 2, to: 1, text: "acquire: first in line"},
			{from: 3, to: 1, text: "acquire: second in line"},
			{from: 0, to: 1, text: "release", ends: true, lease: "b"},
			{from: 1, to: 2, text: "message: it is yours", holds: "b"},
			{from: 2, to: 1, text: "release", ends: true, lease: "c"},
			{from: 1, to: 3, text: "message: it is yours", holds: "c"},
			{from: 1, to: 1},
		},
	},
	"leader": {
		title: "One leader hands over, the next one dies",
		about: "A leads. Its context ends, its function returns, and Run releases the lock. A " +
			"message wakes B, which leads milliseconds later with a larger term. B is " +
			"killed. When its lease ends, C leads.",
		lanes: []string{"replica A", "store", "replica B", "replica C"},
		store: 1,
		steps: []step{
			{from: 0, to: 1, text: "campaign: term 41", lease: "a", holds: "a"},
			{from: 2, to: 1, text: "campaign: wait"},
			{from: 3, to: 1, text: "campaign: wait"},
			{from: 0, to: 0, text: "SIGTERM: lead returns", ends: true},
			{from: 0, to: 1, text: "release", lease: "-"},
			{from: 1, to: 2, text: "message"},
			{from: 2, to: 1, text: "acquire: term 42", lease: "b", holds: "b"},
			{from: 2, to: 2, text: "killed: nothing is released", ends: true},
			{from: 1, to: 1, text: "the lease ends", lease: "-"},
			{from: 3, to: 1, text: "acquire: term 43", lease: "c", holds: "c"},
		},
	},
	"shard": {
		title: "A deploy: one replica's shards move to the next",
		about: "A new replica joins and waits for a seat. The old one says that it leaves. " +
			"The new one takes its seat and waits for its locks. The old one's runs end one " +
			"by one. Each lock that is released wakes the new replica, which runs that shard " +
			"milliseconds later.",
		lanes: []string{"old, seat 3", "store", "new replica"},
		store: 1,
		steps: []step{
			{from: 0, to: 0, holds: "a", lease: "a"},
			{from: 2, to: 1, text: "joins, and waits for a seat"},
			{from: 0, to: 1, text: "SIGTERM: says that it leaves"},
			{from: 1, to: 2, text: "the bell"},
			{from: 2, to: 1, text: "takes seat 3, and waits for its locks"},
			{from: 0, to: 0, text: "its runs end, one by one", ends: true},
			{from: 0, to: 1, text: "releases a shard's lock", lease: "-"},
			{from: 1, to: 2, text: "message"},
			{from: 2, to: 1, text: "acquires it", lease: "b", holds: "b"},
			{from: 2, to: 2, text: "runs the shard, milliseconds later"},
		},
	},
}

var stores = tree{
	title: "Which store?",
	about: "Only goroutines of one process: membackend. The lock guards rows in PostgreSQL: " +
		"postgresbackend. Java programs use the same lock, or a failover may let two in now and " +
		"then: redisbackend or valkeybackend. There is an etcd: etcdbackend. Otherwise: " +
		"quorumbackend on three servers, or PostgreSQL with a synchronous standby.",
	questions: []question{
		{[]string{"Do only goroutines of one process compete, or is it a test?"},
			answer{"membackend", "no server, 1 µs"}},
		{[]string{"Does the lock guard rows in a PostgreSQL?"},
			answer{"postgresbackend", "Guard: no stale commit, ever"}},
		{[]string{"Do Java programs with Redisson take the same lock?"},
			answer{"redisbackend, valkeybackend", "Redisson's own protocol"}},
		{[]string{"Would two holders after a rare failover be a waste,", "and no disaster?"},
			answer{"redisbackend, valkeybackend", "fast; min-replicas-to-write helps"}},
		{[]string{"Is there an etcd, or may there be one?"},
			answer{"etcdbackend", "outlives the loss of a minority"}},
	},
	otherwise: answer{"quorumbackend, on three servers", "or PostgreSQL, synchronous standby"},
}

package redisbackend

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/redisson"
)

// ErrNotReplicated is wrapped in the error of an attempt to lock if fewer replicas have
// acknowledged it in time than [WithReplicas] asks for.
var ErrNotReplicated = redisson.ErrNotReplicated

// WithReplicas makes a lock count as acquired only when n replicas have acknowledged it within the
// timeout: after every acquisition, also a re-entry, Redis is told to WAIT. If fewer answer, the
// attempt fails with [ErrNotReplicated], and is taken back on the master in the background. A call
// that waits for the lock tries again until its own time is over. The default is not to wait for
// replicas.
//
// With it, a replica that has acknowledged a lock and becomes the master knows the lock. It has
// these limits:
//
//   - A failover to a replica that has not acknowledged loses the lock all the same. With n as
//     large as the number of replicas there is none, but then each replica that is down stops all
//     locking.
//   - A replica acknowledges what it has in memory; it may restart empty.
//   - Renewals and releases don't wait. A new master may know an older end of the lease, and let a
//     second owner in then. A lock that was released may be held there until its lease is over.
//   - An acquisition that too few have acknowledged isn't rolled back: until it is taken back,
//     others find the lock held.
//   - A master that is cut off goes on acknowledging with the replicas on its side.
//
// So it makes the loss of a lock in a failover less likely. Redis doesn't become a store that
// agrees before it answers. The server's min-replicas-to-write refuses writes that WAIT would only
// report.
//
// The timeout is a whole number of milliseconds, and less than the client's ReadTimeout (5 s by
// default), which covers the answer to the script too. It should be small against the lease: the
// time of an acquisition is lost of it. An attempt that finds the lock held may also take that long
// while replicas lag. In a cluster an attempt for a slot that has just moved fails, and the next
// one asks the right server.
//
// The user of the client needs the command WAIT. WithReplicas panics if n < 1 or the timeout is
// invalid; [New] panics if the timeout is not below the client's ReadTimeout.
func WithReplicas(n int, timeout time.Duration) Option {
	if n < 1 {
		panic(fmt.Sprintf("redisbackend: WithReplicas: %d replicas are nothing to wait for", n))
	}
	if timeout <= 0 || timeout%time.Millisecond != 0 {
		panic(fmt.Sprintf("redisbackend: WithReplicas: the timeout %v is not a positive number of whole milliseconds", timeout))
	}
	return func(o *options) { o.replicas = redisson.Replicas{N: n, Timeout: timeout} }
}

// checkReplicas panics if a client would give up before the server does.
func checkReplicas(r redisson.Replicas, client redis.UniversalClient) {
	if limit := readTimeout(client); r.N > 0 && limit > 0 && r.Timeout >= limit {
		panic(fmt.Sprintf("redisbackend: WithReplicas: the timeout %v is not below the client's ReadTimeout of %v", r.Timeout, limit))
	}
}

// readTimeout is how long a client waits for an answer. Zero or less: for ever.
func readTimeout(client redis.UniversalClient) time.Duration {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.Options().ReadTimeout
	}
	return client.(*redis.Client).Options().ReadTimeout
}

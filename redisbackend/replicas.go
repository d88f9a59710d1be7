package redisbackend

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/internal/redisson"
)

// ErrNotReplicated means that fewer replicas acknowledged a lock in time than [WithReplicas]
// requires. The error of the failed attempt wraps it.
var ErrNotReplicated = redisson.ErrNotReplicated

// WithReplicas makes a lock count as acquired only when n replicas have acknowledged it within the
// timeout. After every acquisition, even a re-entry, the client sends WAIT. If fewer replicas
// answer, the attempt fails with [ErrNotReplicated], and the client releases the lock on the master
// in the background. A call that waits for the lock keeps trying until its own time is up. By
// default, acquisitions don't wait for replicas.
//
// A replica that acknowledged a lock still has the lock when it is promoted to master. WithReplicas
// has these limits:
//
//   - A failover to a replica that has not acknowledged the lock still loses it. If n equals the
//     number of replicas, there is no such replica. But then a single replica that is down stops
//     all locking.
//   - A replica acknowledges writes that are only in its memory. It may lose them in a restart.
//   - Renewals and releases don't wait. If a new master hasn't received the last renewal, the lease
//     expires earlier there, and a second owner may get the lock. If a new master hasn't received a
//     release, the lock stays held until its lease expires.
//   - If too few replicas acknowledge an acquisition, the master still has it. Others find the lock
//     held until the client has released it.
//   - A master that is cut off goes on granting locks, if enough replicas are on its side.
//
// So WithReplicas makes the loss of a lock in a failover less likely. It doesn't make Redis a
// consensus store. The server's setting min-replicas-to-write refuses writes where WAIT would only
// report too few replicas.
//
// The timeout is a whole number of milliseconds, and less than the client's ReadTimeout (5 s by
// default), which also covers the answer to the script. It should be much shorter than the lease,
// which already runs while the acquisition waits. While replicas lag, even an attempt that finds
// the lock held may last until the timeout. In a cluster, an attempt fails if the slot of its key
// has just moved, and the next attempt asks the right server.
//
// The Redis user of the client needs permission for the command WAIT. WithReplicas panics if n < 1
// or the timeout is invalid. [New] panics if the timeout is not below the client's ReadTimeout.
func WithReplicas(n int, timeout time.Duration) Option {
	if n < 1 {
		panic(fmt.Sprintf("redisbackend: WithReplicas: %d replicas are nothing to wait for", n))
	}
	if timeout <= 0 || timeout%time.Millisecond != 0 {
		panic(fmt.Sprintf("redisbackend: WithReplicas: the timeout %v is not a positive number "+
			"of whole milliseconds", timeout))
	}
	return func(o *options) { o.replicas = redisson.Replicas{N: n, Timeout: timeout} }
}

// checkReplicas panics if the timeout for replicas isn't less than the client's ReadTimeout.
func checkReplicas(r redisson.Replicas, client redis.UniversalClient) {
	if limit := readTimeout(client); r.N > 0 && limit > 0 && r.Timeout >= limit {
		panic(fmt.Sprintf("redisbackend: WithReplicas: the timeout %v is not below the client's "+
			"ReadTimeout of %v", r.Timeout, limit))
	}
}

// readTimeout returns how long a client waits for a reply. Zero or less means no limit.
func readTimeout(client redis.UniversalClient) time.Duration {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.Options().ReadTimeout
	}
	return client.(*redis.Client).Options().ReadTimeout
}

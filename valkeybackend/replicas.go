package valkeybackend

import (
	"fmt"
	"time"

	"github.com/seed951563bd/distsync/internal/redisson"
)

// ErrNotReplicated means that fewer replicas acknowledged a lock in time than [WithReplicas]
// requires. The attempt to lock fails with an error that wraps it.
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
// So WithReplicas makes the loss of a lock in a failover less likely. It doesn't make Valkey a
// consensus store. The server's setting min-replicas-to-write refuses writes where WAIT would only
// report too few replicas.
//
// WAIT waits for the earlier writes of its connection, and delays the later ones. So each
// acquisition has its own connection while it lasts. These connections come from a pool, which is
// separate from the client's shared connections and is limited by BlockingPoolSize. If the context
// of an attempt ends, its connection stays in use until Valkey has answered.
//
// The timeout is a whole number of milliseconds. It must be less than the client's ConnWriteTimeout
// (10 s by default), after which the client drops the connection, and the attempt fails. It should
// be much shorter than the lease, which already runs while the acquisition waits. While replicas
// lag, even an attempt that finds the lock held may last until the timeout. In a cluster, an
// attempt fails while the slot of its key is being migrated.
//
// The Valkey user of the client needs permission for the command WAIT. WithReplicas panics if n < 1
// or the timeout is not a positive number of whole milliseconds.
func WithReplicas(n int, timeout time.Duration) Option {
	if n < 1 {
		panic(fmt.Sprintf("valkeybackend: WithReplicas: %d replicas are nothing to wait for", n))
	}
	if timeout <= 0 || timeout%time.Millisecond != 0 {
		panic(fmt.Sprintf("valkeybackend: WithReplicas: the timeout %v is not a positive number "+
			"of whole milliseconds", timeout))
	}
	return func(o *options) { o.replicas = redisson.Replicas{N: n, Timeout: timeout} }
}

package dlock

import (
	"math/rand/v2"
	"time"
)

// longestPause returns the longest pause between the requests of a waiting call. It is at most a
// third of the default lease, so that even a call with a long lease soon notices that the store is
// back, or that a message was lost.
func longestPause(lease time.Duration) time.Duration { return min(lease, DefaultLease) / 3 }

// A backoff is a delay that doubles after each failure, up to a limit.
type backoff struct{ delay time.Duration }

// next returns the next delay. It is partly random, so that clients that failed at the same time
// don't all retry at the same time.
func (b *backoff) next(first, limit time.Duration) time.Duration {
	b.delay = min(max(2*b.delay, first), max(limit, first))
	return b.delay/2 + rand.N(b.delay/2+1)
}

func (b *backoff) reset() { b.delay = 0 }

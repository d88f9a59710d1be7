// Package protocol is what a client of package dlock may conclude from what it has sent to a store
// and what it was answered. It has no goroutine, clock, context, mutex or I/O: whoever calls it
// says what time it is. A test holds it to that.
package protocol

import "time"

// An Instant is a time on the monotonic clock of a client.
type Instant = time.Duration

// driftShare is the part of each lease that is kept back, for clocks that don't run alike.
const driftShare = 100

// Promised returns how much of the lease that a store has granted can be relied on.
func Promised(lease time.Duration) time.Duration { return lease - lease/driftShare }

// Package protocol says what a client of package dlock may conclude from its requests to a store
// and the answers. It has no goroutine, clock, context, mutex or I/O. Its callers pass the time. A
// test enforces that.
package protocol

import "time"

// An Instant is a time on the monotonic clock of a client.
type Instant = time.Duration

// driftShare is the divisor for the part of each lease that is held in reserve, since clocks differ
// in speed.
const driftShare = 100

// Promised returns how much of a granted lease can be relied on.
func Promised(lease time.Duration) time.Duration { return lease - lease/driftShare }

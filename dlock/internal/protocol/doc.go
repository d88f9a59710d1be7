// Package protocol decides what a client of package dlock may conclude from the requests that it
// sends to a store, and from the answers. It uses no goroutines, clocks, contexts, mutexes or I/O:
// its callers tell it the time. A test enforces that.
package protocol

import "time"

// An Instant is a time on the monotonic clock of a client.
type Instant = time.Duration

// driftShare sets how much of each lease is kept in reserve, because clocks can differ in speed.
// The reserve is 1/driftShare of the lease.
const driftShare = 100

// Promised returns how much of a granted lease can be relied on.
func Promised(lease time.Duration) time.Duration { return lease - lease/driftShare }

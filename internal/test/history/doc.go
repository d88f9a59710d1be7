// Package history checks the calls and answers of concurrent users of a lock.
//
// A [Recorder] records every call that users make through a [Party], and when it began and ended,
// on one monotonic clock. By [Recorder.Watch] it also records the steps that reach the store, since
// calls without an answer may have left holds there. [Recorder.Check] then checks three things:
//
//   - There must be an order of the calls in which a lock could have given these answers. Package
//     porcupine searches for it. A call takes effect at one moment between its begin and its end. A
//     hold may end by itself when its lease may have expired, and not before. A hold that never
//     ended must still be there. The answer "held by another" needs another hold at that moment, or
//     a hold that a request without an answer may have acquired.
//   - No two users may rely on the lock at once, by their own clocks.
//   - A lock must not stay free while a call waits for it. This is checked if time is virtual and
//     nothing fails.
//
// If a lock is forced, or the store loses it, there may be a second holder until the first learns
// of its loss. That is at its next renewal, or when its lease expires. The check allows that and no
// more.
//
// A [Workload] runs random users. On a failure [Recorder.Verify] writes the history as a page for a
// browser. It reports where the page is, and how to repeat the run.
package history

// Package history checks what concurrent users of a lock have seen.
//
// A [Recorder] notes every call that users make through a [Party], and when it began and ended, on
// one monotonic clock. It also watches the steps that reach the store ([Recorder.Watch]), to know
// what calls without an answer may have left behind. [Recorder.Check] then looks for:
//
//   - an order of the calls in which a lock could have given these answers, found by package
//     porcupine. A call takes effect at one moment between its begin and its end; a hold may end by
//     itself when its lease may be over, and not before; one that was never over must still be
//     there. "Another holds it" needs a hold of another at that moment, or one that a request
//     without an answer has brought about;
//   - two who could rely on the lock at once, by their own clocks;
//   - a lock that is free while somebody waits for it, where time is virtual and nothing fails.
//
// A lock that is forced, or lost by its store, admits a second holder beside the one that was
// struck, until that one is told: at its next renewal, or when its lease is over. The check admits
// that and no more.
//
// A [Workload] is what random users do. On a failure [Recorder.Verify] writes the history as a page
// to be looked at in a browser, and says where; and how to repeat the run.
package history

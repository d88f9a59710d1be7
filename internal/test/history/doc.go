// Package history checks the calls and answers of concurrent users of a lock.
//
// A [Recorder] records every call that users make through a [Party], with its start and its end on
// one monotonic clock. With [Recorder.Watch], it also records the steps that reach the store, since
// unanswered calls may have left holds there. [Recorder.Check] then checks three things:
//
//   - The calls must have an order in which a lock could have given these answers. Package
//     porcupine searches for it. A call takes effect at one moment between its start and its end. A
//     hold can have expired only if its lease may have ended by that moment. A hold that was not
//     released and can't have expired must still be there. The answer "held by another" is possible
//     only if there is another hold at that moment, or if an unanswered request may have acquired
//     one.
//   - No two users may rely on the lock at once, by their own clocks.
//   - A lock must not stay free while a call waits for it. This is checked if time is virtual and
//     nothing fails.
//
// If a lock is force-unlocked, or the store loses it, there may be a second holder until the first
// one learns of its loss, at its next renewal or when its lease expires. The check allows a second
// holder only until then.
//
// A [Workload] runs random users. If a check fails, [Recorder.Verify] writes the history as an HTML
// page. It reports where the page is, and how to repeat the run.
package history

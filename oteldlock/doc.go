// Package oteldlock measures the locks of package dlock with OpenTelemetry, and creates spans for
// their acquisitions.
//
//	trace, err := oteldlock.New() // with the global providers
//	if err != nil {
//		return err
//	}
//	client := dlock.New(redisbackend.New(rdb), dlock.WithTrace(trace))
//
// It depends only on OpenTelemetry's API. The program sets up the SDK. The example in
// examples/prometheus serves the metrics to Prometheus.
//
// # Metrics
//
//	distsync.acquisitions    counter          acquiring calls, counted when they end
//	                                          kind, outcome, via, error.type, name
//	distsync.wait.duration   histogram, s     the duration of these calls
//	                                          kind, outcome, via, error.type, name
//	distsync.waiting         up-down counter  the number of these calls under way
//	                                          kind, name
//	distsync.held            up-down counter  locks held
//	                                          kind, name
//	distsync.hold.duration   histogram, s     the duration of holds, at their end
//	                                          kind, outcome, error.type, name
//	distsync.losses          counter          locks lost while they were held
//	                                          kind, reason, name
//	distsync.renewals        counter          renewals, counted for each lock
//	                                          outcome, error.type
//	distsync.store.duration  histogram, s     the duration of the store's steps
//	                                          step, kind, error.type
//
// The second line of each metric lists its attributes. The Trace that [Shards] returns measures
// sets of shards, with the metrics below. All of them have the attribute distsync.set, and
// distsync.shards.ends also has distsync.reason:
//
//	distsync.shards.running          up-down counter  shards that this process runs
//	distsync.shards.overdue          up-down counter  runs that continue after their grace period
//	distsync.shards.ends             counter          runs, counted when they end
//	distsync.shards.start.delay      histogram, s     how long a wanted shard waited for its run
//	distsync.shards.finish.duration  histogram, s     how long runs took to return when asked to
//	distsync.shards.members          gauge            members, as this one sees them
//	distsync.shards.lists            gauge            different lists of shards; normally 1
//	distsync.shards.free             gauge            shards for which no member has room
//	distsync.shards.frozen           gauge            1 while a writer holds the members' lock
//
// All attributes except error.type begin with "distsync.": distsync.kind, and so on.
//
//   - kind: exclusive, fenced, fair, read, write, or permits for a semaphore. Permits that one call
//     acquires count as one hold.
//   - outcome of an acquisition: acquired; timeout, if another client held the lock; canceled, if
//     the caller's context ended; error.
//   - via, if it was acquired: store; handover, from another goroutine of the client; joined,
//     shared with other readers of the client; granted, by the store to the first in line; reentry.
//     A re-entry adds to an existing hold, and isn't counted in distsync.held and
//     distsync.hold.duration.
//   - outcome of a hold: released; handover, to another goroutine of the client; lost; error, if
//     the store didn't confirm the unlock; closed, if the client was closed during the hold.
//   - reason of a loss: expired, gone, taken, forced, paused, lease (see [dlock.LossReason]). With
//     the reason lease, a fixed lease has expired, which may be intended.
//   - set: the name of a set of shards.
//   - reason of the end of a run: moved, to another member; stopped, because Run or the client
//     ended; lost; returned, although it wasn't told to end.
//   - outcome of a renewal: answered, or error. If the store answered that the lock is gone, the
//     outcome is answered, and there is also a loss.
//   - step: acquire, release, renew, look, forcerelease, keepplaces, inspect, list. Steps that
//     aren't about one lock have no kind.
//   - error.type, only after a failure. For a call it is unavailable (the store didn't answer, or
//     refused), conflict, closed, lost, not_held, upgrade, too_many, no_limit, unsupported, or
//     _OTHER. For a step it can also be outcome_unknown (it may have been carried out), not_done
//     (it wasn't), or refused (it never will be). It isn't a failure if a call finds the lock held,
//     or if its caller gives up. There is one exception: if the store couldn't say who holds the
//     lock, error.type is unavailable, whatever the outcome.
//   - name: only with [WithNameLabel].
//
// An instrument that the program's SDK drops, for example with a view, costs next to nothing. If
// none is dropped, a Lock and its Unlock make nine measurements. With version 1.47 of the SDK, they
// take 2 µs of CPU time, nearly all of it in the SDK itself.
//
// Calls with an empty name, or on a closed client, aren't counted.
//
// The first request for a lock of a kind (and name) sets the counters of losses for all reasons to
// 0, so that queries see the first loss as an increase. Other counters don't exist before their
// first event.
//
// # Spans
//
// The span "distsync acquire", of kind internal, represents an acquiring call. Its attributes are
// distsync.name, kind, outcome, via, holder (the hold's id in the store) and permits. Its status is
// Error if there is an error.type, and not set otherwise.
//
// The steps of the store are events of that span, "distsync.step", with step, duration (in seconds)
// and error.type. They aren't spans, since they are reported at their end. An instrumented client
// of the store (with redisotel, for example) creates better spans for them. Those are children of
// the acquisition's span, since the store is called with its context. On Redis and Valkey that
// requires the backend's option WithContextValues: without it, steps of several calls share round
// trips, and the client of the store sees no caller's context. In the same way, the spans of other
// steps, such as those of an unlock, are children of the caller's own span. Those steps create no
// events.
//
// A hold isn't a span, since it may last for hours. Work under a lock belongs to the caller's own
// spans. A loss has no span, since it doesn't happen in a call. But it is counted and logged, and
// the cause of the hold's context says why the lock was lost.
package oteldlock

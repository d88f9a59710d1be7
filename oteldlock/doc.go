// Package oteldlock measures locks of package dlock with OpenTelemetry, and makes spans of their acquisitions.
//
//	trace, err := oteldlock.New() // with the global providers
//	if err != nil {
//		return err
//	}
//	client := dlock.New(redisbackend.New(rdb), dlock.WithTrace(trace))
//
// It needs OpenTelemetry's API only; the program sets up the SDK. examples/prometheus serves the
// metrics to Prometheus.
//
// # Metrics
//
//	distsync.acquisitions    counter          calls that acquire, as they end       kind, outcome, via, error.type, name
//	distsync.wait.duration   histogram, s     how long they took                    kind, outcome, via, error.type, name
//	distsync.waiting         up-down counter  such calls under way                  kind, name
//	distsync.held            up-down counter  locks held                            kind, name
//	distsync.hold.duration   histogram, s     for how long they were, as that ends  kind, outcome, error.type, name
//	distsync.losses          counter          locks lost while they were held       kind, reason, name
//	distsync.renewals        counter          renewals, each lock for itself        outcome, error.type
//	distsync.store.duration  histogram, s     steps of the store                    step, kind, error.type
//
// And of shards, by the Trace of [Shards]:
//
//	distsync.shards.running          up-down counter  shards that this process runs                  set
//	distsync.shards.overdue          up-down counter  runs that go on after their grace              set
//	distsync.shards.ends             counter          runs, as they end                              set, reason
//	distsync.shards.start.delay      histogram, s     from when a shard was wanted until it ran      set
//	distsync.shards.finish.duration  histogram, s     how long runs took to return when told to      set
//	distsync.shards.members          gauge            members, as this one sees them                 set
//	distsync.shards.lists            gauge            lists of shards that they have; 1 as a rule    set
//	distsync.shards.free             gauge            shards for which no member has room            set
//	distsync.shards.frozen           gauge            1 while somebody writes the members' lock      set
//
// Attributes but error.type begin with "distsync.": distsync.kind, and so on.
//
//   - kind: exclusive, fenced, fair, read, write, or permits for a semaphore, of which several that are acquired at once count as one.
//   - outcome of an acquisition: acquired; timeout, another has it; canceled, the caller's context ended; error.
//   - via, if it was acquired: store; handover, from another goroutine of the client; joined, shared with other readers of the client;
//     granted, by the store to the first in line; reentry, which is no other hold, and counts in neither held nor hold.duration.
//   - outcome of a hold: released; handover, to another goroutine of the client; lost; error, the store didn't confirm the unlock; closed, it
//     was held when the client was closed.
//   - reason of a loss: expired, gone, taken, forced, paused, lease: see [dlock.LossReason]. One with the reason lease had a fixed lease that ran out, and may be
//     as it was meant.
//   - set: the name of a set of shards.
//   - reason of the end of a run: moved, to another member; stopped, with Run or the client; lost; returned, without having been told to.
//   - outcome of a renewal: answered, or error. The store may have answered that the lock is gone: that is a loss.
//   - step: acquire, release, renew, look, forcerelease, keepplaces, inspect, list. Those that are of no one lock have no kind.
//   - error.type, only where something failed. Of calls: unavailable (the store didn't answer, or refused), conflict, closed, lost, not_held, upgrade, too_many,
//     no_limit, unsupported, _OTHER. Of steps, too: outcome_unknown (it may have been carried out), not_done (it wasn't), refused (it never will be). That
//     another has the lock, or that the caller gave up, is no failure, unless the store couldn't say meanwhile who has it: then error.type is unavailable,
//     whatever the outcome.
//   - name: only with [WithNameLabel].
//
// An instrument that the program's SDK drops, by a view for example, costs next to nothing. Otherwise
// the SDK takes nearly all of the time: nine records for a lock and its unlock take 2 µs of CPU with
// version 1.47.
//
// Calls with an empty name, or of a closed client, aren't counted.
//
// The counters of losses begin at 0, for each reason, at the first request for a lock of that kind (and
// name), so that the first loss is seen as an increase. Other counters don't exist until they count.
//
// # Spans
//
// "distsync acquire", of kind internal, is the acquiring call. It has distsync.name, kind, outcome,
// via, holder (the hold's id in the store) and permits. Its status is Error if there is an error.type,
// and otherwise not set.
//
// Steps of the store are its events, "distsync.step", with step, duration (in seconds) and error.type.
// They aren't spans, since they are reported at their end. An instrumented client of the store (with
// redisotel, for example) makes better spans. These are children of the span, since the store is called
// with its context. On Redis and Valkey that needs the backend's option WithContextValues, since steps
// share round trips otherwise. Spans of other steps, such as those of an unlock, are children of the
// caller's own span in the same way, without an event.
//
// A hold isn't a span, since it may last for hours: work under a lock is in the caller's own spans. A
// loss has no span, since it happens in no call: it is counted, the client logs it, and the cause of the
// hold's context says why.
package oteldlock

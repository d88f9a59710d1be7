package redisson

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/pubsub"
)

// Options are the settings of a session.
type Options struct {
	Store      string // the store's name in errors
	Transport  Transport
	Subscriber *pubsub.Subscriber
	Cluster    bool // whether the transport leads to a cluster
	Dialect    Dialect
	// Prefix is the prefix of keys. Each step adds it to the lock's name.
	Prefix   string
	Replicas Replicas

	// Settle waits for requests that are still under way after their steps have returned, as the
	// field Settle of [backend.Capabilities] does. It is set only if steps return as soon as their
	// contexts end.
	Settle func()
}

// Open returns a new session. Each step builds its commands, sends them with the transport, and
// reads the replies.
func Open(o Options) backend.Session {
	return &session{Options: o}
}

// session is one client's access to the store.
type session struct {
	Options
	probed atomic.Bool // set by probe
	latest latest      // the plain lock acquired last
	denied denials

	strangers strangers
	turns     turns
}

// Capabilities implements [backend.Capable].
func (s *session) Capabilities() backend.Capabilities {
	c := backend.Capabilities{
		Notifier: s, BatchRenewer: s, Batcher: s, Inspector: s, Lister: s, Liner: s, Latcher: s,
		Settle: s.Settle,
	}
	if s.Settle != nil {
		c.Steps = backend.StepsReturn
	}
	return c
}

func (s *session) Close() error {
	s.Subscriber.Close()
	return nil
}

// begin returns the entry for a step's kind of lock. It returns an error if the kind isn't
// supported, the lock can't have this name, ctx has ended, or the server can't be reached.
func (s *session) begin(ctx context.Context, kind backend.Kind, name, owner string) (*kind, error) {
	k, err := s.check(ctx, kind, name, owner)
	if err != nil {
		return nil, err
	}
	return k, s.Transport.Reach(ctx, name)
}

// check is like begin, but doesn't check whether the server can be reached.
func (s *session) check(ctx context.Context, kind backend.Kind, name, owner string) (*kind, error) {
	k := kindOf(kind)
	if k == nil {
		return nil, backend.UnknownKind(s.Store, kind)
	}
	if k.refuse != nil {
		if err := k.refuse(name); err != nil {
			return nil, &backend.Error{Kind: backend.Refused, Err: err}
		}
	}
	if s.Cluster {
		if err := checkSlots(name, k.keys(name, k.called(owner))...); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, &backend.Error{Kind: backend.Retry, Err: err}
	}
	return k, nil
}

// more is what a fair lock's script replies if it has done part of its clean-up, but hasn't begun
// the step itself. The script must then be sent again.
const more = "more"

// run runs a script. It needs more than one round trip only if the server doesn't know the script
// yet, or if the script replies that it has more to do.
func (s *session) run(ctx context.Context, call Call) Reply {
	for {
		r := s.Transport.Send(ctx, call.bySHA())
		if r.unknownScript() {
			r = s.Transport.Send(ctx, call.byText())
		}
		if r.Value != more {
			return r
		}
	}
}

// runWith runs a script and other commands in the same round trip. It puts the script into cmds[0].
func runWith(ctx context.Context, send func(context.Context, ...Command) []Reply,
	call Call, cmds []Command) []Reply {
	for {
		cmds[0] = call.bySHA()
		replies := send(ctx, cmds...)
		if replies[0].unknownScript() {
			cmds[0] = call.byText()
			replies = send(ctx, cmds...)
		}
		if replies[0].Value != more {
			return replies
		}
	}
}

func (s *session) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (backend.AcquireResult, error) {
	req.Name = s.Prefix + req.Name
	k, err := s.begin(ctx, req.Kind, req.Name, req.Owner)
	if err == nil {
		err = s.probe(ctx)
	}
	if err != nil {
		return backend.AcquireResult{}, err
	}
	req.Owner = k.called(req.Owner)
	if k.line {
		s.latest.isNot(req.Name)
		return s.acquireInLine(ctx, k, req)
	}
	sent := time.Now()
	_, res, err := s.attempt(ctx, k, req)
	switch {
	case err != nil:
		return backend.AcquireResult{}, err
	case s.noted(k, req, sent, res):
		return res, s.foreign(ctx, req.Name)
	}
	return res, nil
}

// noted records the answer to an attempt to acquire a lock of kind k. If the attempt was refused,
// noted reports whether the key might be something other than such a lock.
func (s *session) noted(
	k *kind, req backend.AcquireRequest, sent time.Time, res backend.AcquireResult,
) (doubtful bool) {
	switch {
	case !k.blind:
		s.latest.isNot(req.Name)
	case res.Acquired:
		s.latest.is(req.Name, req.Owner, sent.Add(req.Lease))
	default:
		return s.doubtful(k, req, res)
	}
	return false
}

// attempt makes one attempt to acquire a lock. It returns the script's reply, both raw and parsed.
func (s *session) attempt(
	ctx context.Context, k *kind, req backend.AcquireRequest,
) (Reply, backend.AcquireResult, error) {
	if err := s.denied.take(k); err != nil {
		return Reply{Err: err}, backend.AcquireResult{}, err
	}
	if s.Replicas.N > 0 || req.Reentry && k.count != nil {
		return s.acquireAsking(ctx, k, req)
	}
	r := s.runLooking(ctx, k, req)
	s.denied.note(k, r.Err)
	res, err := parse(r, k.acquired)
	if k.holders != nil && err == nil && !res.Acquired {
		s.strangers.refused(req.Name)
	}
	return r, res, err
}

// runLooking runs the script that attempts to acquire a lock. From time to time it also asks who
// holds the lock, in the same round trip.
func (s *session) runLooking(ctx context.Context, k *kind, req backend.AcquireRequest) Reply {
	call := k.acquire(s.Dialect, req)
	if k.untold {
		s.strangers.asks(req.Owner)
	}
	if k.holders == nil || !s.strangers.due(req.Name) ||
		!s.Subscriber.Listens(k.channel(req.Name)) {
		return s.run(ctx, call)
	}
	replies := runWith(ctx, s.Transport.SendTogether, call, []Command{{}, k.holders(req.Name)})
	s.strangers.saw(k, req.Name, req.Owner, replies[1])
	return replies[0]
}

// doubtful reports whether the key must be checked after a refused attempt, because it might not be
// a lock of kind k. A key without an expiry is always checked. Any other key is known to be such a
// lock if another call of this session waits for the lock or holds it.
func (s *session) doubtful(k *kind, req backend.AcquireRequest, res backend.AcquireResult) bool {
	return res.Remaining < 0 ||
		!s.latest.refuses(req.Name, req.Owner) && !s.Subscriber.Listens(k.channel(req.Name))
}

// foreign returns an error if the key isn't a plain or fair lock.
func (s *session) foreign(ctx context.Context, name string) error {
	return foundForeign(s.run(ctx, IsForeign(name)))
}

// foundForeign reads the reply to [IsForeign]. If the request failed, foundForeign assumes that the
// key is a lock.
func foundForeign(r Reply) error {
	if r.Err != nil {
		return nil // the key still counts as a lock
	}
	return ParseIsForeign(r.Value)
}

// kept reports whether a plain or fair lock was released but stays taken. It returns an error if
// the key isn't such a lock.
func (s *session) kept(ctx context.Context, name string) (bool, error) {
	return parse(readOnly(s.run(ctx, IsKept(name))), ParseIsKept)
}

// acquireAsking acquires the lock, and sends further commands in the same round trip. For a
// re-entry, it asks for the number of the owner's holds. If replicas must acknowledge the
// acquisition, it then asks how many did.
func (s *session) acquireAsking(
	ctx context.Context, k *kind, req backend.AcquireRequest,
) (Reply, backend.AcquireResult, error) {
	send, cmds := s.Transport.SendTogether, make([]Command, 1, 3)
	counts := req.Reentry && k.count != nil
	if counts {
		cmds = append(cmds, k.count(req.Name, req.Owner))
	}
	if s.Replicas.N > 0 {
		send, cmds = s.Transport.SendApart, append(cmds, s.Replicas.wait())
	}
	replies := runWith(ctx, send, k.acquire(s.Dialect, req), cmds)
	s.denied.note(k, replies[0].Err)
	res, err := parse(replies[0], k.acquired)
	if err != nil || !res.Acquired {
		return replies[0], res, err
	}
	// The lock is acquired now, so any later error is Unknown.
	if counts {
		res.Count, err = parse(replies[1], ParseCount)
	}
	if err == nil && s.Replicas.N > 0 {
		err = s.Replicas.acknowledged(replies[len(replies)-1])
	}
	if err != nil {
		return replies[0], backend.AcquireResult{}, &backend.Error{Kind: backend.Unknown, Err: err}
	}
	return replies[0], res, nil
}

func (s *session) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	req.Name = s.Prefix + req.Name
	k, err := s.begin(ctx, req.Kind, req.Name, req.Owner)
	if err != nil {
		return backend.ReleaseResult{}, err
	}
	req.Owner = k.called(req.Owner)
	s.latest.isNot(req.Name)
	s.turns.over(req.Name, req.Owner)
	if req.Keep > 0 && k.keep != nil {
		return parse(s.runRelease(ctx, k, req.Name, k.keep(s.Dialect, req)), ParseKeep)
	}
	var res backend.ReleaseResult
	if !req.AskWaiting || k.line {
		res, err = parse(s.runRelease(ctx, k, req.Name, k.release(s.Dialect, req)), k.released)
	} else {
		res, err = s.releaseAsking(ctx, k, req)
	}
	if k.releaseAgain != nil && MayHold(res, err) {
		return parse(s.runRelease(ctx, k, req.Name, k.releaseAgain(s.Dialect, req)),
			k.releasedAgain)
	}
	return res, err
}

// releaseAsking releases the lock and, in the same round trip, counts the clients that listen for
// releases.
func (s *session) releaseAsking(
	ctx context.Context, k *kind, req backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	channel := k.channel(req.Name)
	own := s.Subscriber.Watch(channel)
	replies := runWith(ctx, s.Transport.SendTogether, k.release(s.Dialect, req), []Command{
		{}, s.Dialect.countWaiting(channel, s.Cluster),
	})
	least, most := own()
	if replies[0].deniedKeys() {
		return parse(s.runRelease(ctx, k, req.Name, k.release(s.Dialect, req)), k.released)
	}
	res, err := parse(replies[0], k.released)
	if err == nil && res.Outcome == backend.Freed {
		s.Dialect.AddWaiting(&res, replies[1].Value, replies[1].Err, s.Cluster, least, most)
		res.Strangers = s.strangers.among(res.Waiting, req.Name)
	}
	return res, err
}

func (s *session) Renew(
	ctx context.Context, req backend.RenewRequest,
) (backend.RenewResult, error) {
	req.Name = s.Prefix + req.Name
	k, err := s.begin(ctx, req.Kind, req.Name, req.Owner)
	if err != nil {
		return backend.RenewResult{}, err
	}
	req.Owner = k.called(req.Owner)
	s.latest.lasts(req.Name, time.Now().Add(req.Lease))
	res, err := parse(s.run(ctx, k.renew(s.Dialect, req)), k.renewed)
	if err != nil || res.Held || k.renewAgain == nil {
		return res, err
	}
	return parse(s.run(ctx, k.renewAgain(req)), k.renewedAgain)
}

func (s *session) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	req.Name = s.Prefix + req.Name
	k, err := s.begin(ctx, req.Kind, req.Name, "")
	if err == nil {
		err = s.probe(ctx)
	}
	if err != nil {
		return backend.ForceReleaseResult{}, err
	}
	s.latest.isNot(req.Name)
	return parse(s.run(ctx, k.force(s.Dialect, req)), k.forced)
}

// Look needs one round trip. It needs a second one if the first leaves open whether the key is a
// lock of the requested kind, or whether the lock was released but stays taken.
func (s *session) Look(ctx context.Context, req backend.LookRequest) (backend.LookResult, error) {
	req.Name = s.Prefix + req.Name
	k, err := s.begin(ctx, req.Kind, req.Name, req.Owner)
	if err != nil {
		return backend.LookResult{}, err
	}
	req.Owner = k.called(req.Owner)
	res, certain, err := k.looked(req, s.Transport.SendTogether(ctx, k.look(req)...))
	if err != nil || certain {
		return res, err
	}
	if res.Kept, err = s.kept(ctx, req.Name); err != nil {
		return backend.LookResult{}, err
	}
	return res, nil
}

// Subscribe returns once the server has confirmed the subscription.
func (s *session) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	req.Name = s.Prefix + req.Name
	if req.Kind == backend.Latch {
		return s.subscribeLatch(ctx, req)
	}
	k, err := s.begin(ctx, req.Kind, req.Name, "")
	if err == nil {
		err = s.probe(ctx)
	}
	if err != nil {
		return nil, err
	}
	if k.line {
		return s.listenInLine(ctx, req)
	}
	return s.Subscriber.Subscribe(ctx, k.channel(req.Name), k.decode, woken(req), req.Changed)
}

// probe returns an error if the server is too old for the dialect. It is called before an
// acquisition, because at the release it would be too late: on an old server, the script frees the
// lock first, and fails after that. In a cluster, probe may ask any server. Once it has succeeded,
// it doesn't ask again.
func (s *session) probe(ctx context.Context) error {
	if !s.Dialect.Sharded || s.probed.Load() {
		return nil
	}
	r := s.Transport.Send(ctx, Command{Verb: "PUBSUB", Args: []string{"SHARDNUMSUB"}})
	if err := CheckSharded(r.Refusal, r.Err); err != nil {
		if backend.KindOf(err) == backend.Unknown { // the command changes nothing
			err = &backend.Error{Kind: backend.Retry, Err: err}
		}
		return err
	}
	s.probed.Store(true)
	return nil
}

package etcdbackend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/backend"
)

// A watcher serves all subscriptions of a session with one watch stream. The client library's own
// watcher would restore a broken stream without reporting that, and would need two goroutines for
// each watch.
//
// All watches begin at the current revision, because a server serves watches that begin in the past
// from a loop that runs only ten times a second. Subscribers that may have missed an event while
// there was no stream are woken instead.
//
// There are three goroutines, named after their methods: run opens streams and sends requests,
// receive handles the messages that arrive, and check makes sure that messages arrive. A stream is
// used until its first error.
type watcher struct {
	client     pb.WatchClient
	waiters    *waiters
	checkEvery time.Duration
	checked    func()          // called at each check of a stream
	ctx        context.Context // ends with the session
	stop       context.CancelFunc
	kick       chan struct{} // tells run that it has work

	mu       sync.Mutex // not held while sending, receiving or calling a subscriber
	started  bool       // run was started
	lastID   int64      // the id of the last watch; no id is used twice
	subs     map[*subscription]struct{}
	lines    map[string]*watchedLine // of the latest subscription, by lock name
	watches  map[int64]*subscription // the watches requested on the current stream, by id
	queue    []*pb.WatchRequest      // to send on the current stream
	asked    []int64                 // watches whose creation hasn't been answered yet, in order
	heard    bool                    // a message has arrived since the last check
	failures int                     // consecutive streams on which no watch was confirmed
	learners int                     // consecutive streams that learners have refused
	failed   error                   // the last stream's error
	pause    time.Time               // no new stream is opened before this time
}

type subscription struct {
	watcher *watcher
	name    string
	key     []byte
	end     []byte       // the end of the watched range; nil if only key is watched
	shared  *shared      // only for a read-write lock
	permits *permits     // only for a semaphore
	line    *watchedLine // only for a fair lock
	watches bool         // the subscriber only watches, and doesn't want the lock
	wake    func()
	changed func(broken error) // nil if the subscriber doesn't need it

	// Guarded by the watcher's mutex.
	watch  int64 // the id of the watch on the current stream, or 0
	active bool  // the server has confirmed the watch
	broken bool  // the subscriber was told that the subscription is broken
	closed bool
	answer chan error  // the result of Subscribe
	later  *time.Timer // delays a wake-up, so that earlier sessions go first; nil if never used
}

const (
	minPause = 20 * time.Millisecond
	maxPause = 2 * time.Second
)

func newWatcher(
	client pb.WatchClient, ws *waiters, checkEvery time.Duration, checked func(),
) *watcher {
	ctx, stop := context.WithCancel(context.Background())
	return &watcher{
		client:     client,
		waiters:    ws,
		checkEvery: checkEvery,
		checked:    checked,
		ctx:        ctx,
		stop:       stop,
		kick:       make(chan struct{}, 1),
		subs:       make(map[*subscription]struct{}),
		lines:      make(map[string]*watchedLine),
		watches:    make(map[int64]*subscription),
		heard:      true,
	}
}

// close ends the watcher. It doesn't wait.
func (w *watcher) close() { w.stop() }

// shared holds the key prefixes that are watched for a read-write lock, in addition to the lock's
// key.
type shared struct {
	reads, notes []byte
	toRead       func() bool // reports whether a call of this client might be waiting to read
}

// Subscribe returns once the server has confirmed that it watches the lock's key. Wake is called
// when the key is deleted, or expires with its lease. The call is delayed a little for each session
// that began to wait earlier. If the lock is taken during that delay, Wake isn't called.
//
// For a read-write lock, the keys of readers and of notes are also watched. When a reader leaves,
// Wake is called with that delay. When a write ends, Wake is called at once if a call of this
// client is waiting to read, and otherwise with that delay. When a note ends, Wake is called at
// once.
//
// A subscriber that only watches doesn't count as waiting. It is notified of every change of the
// keys, without delay. For a semaphore, the keys of permits are watched: see [permits].
func (s *session) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	if req.Kind == backend.Latch {
		return s.subscribeLatch(ctx, req)
	}
	k, err := check(ctx, req.Kind)
	if err != nil {
		return nil, err
	}
	sub := &subscription{
		watcher: s.watcher, name: req.Name, key: s.store.key(req.Name), changed: req.Changed,
		answer: make(chan error, 1), watches: req.Watches,
		wake: func() {
			if !req.Watches {
				s.others.remove(req.Name)
			}
			req.Wake(0)
		},
	}
	if k.watch != nil {
		sub.end = append(s.store.key(req.Name), 2)
		k.watch(s, sub, req)
	}
	if err := s.watcher.add(sub); err != nil {
		return nil, err
	}
	if sub.polite() {
		s.waiters.join(ctx, req.Name)
	}
	return sub.wait(ctx)
}

// polite reports whether the session takes its turn among the waiting sessions: see waiters.
func (sub *subscription) polite() bool { return sub.line == nil && !sub.watches }

func (s *session) watchShared(sub *subscription, req backend.SubscribeRequest) {
	sub.shared = &shared{
		reads:  s.store.keysOf(req.Name, readRole),
		notes:  s.store.keysOf(req.Name, noteRole),
		toRead: func() bool { return req.Kind == backend.Read || s.waits.any(req.Name) },
	}
}

func (s *session) watchPermits(sub *subscription, req backend.SubscribeRequest) {
	sub.permits = &permits{keys: s.store.keysOf(req.Name, permitRole)}
}

// wait waits for the server's answer.
func (sub *subscription) wait(ctx context.Context) (_ backend.Subscription, err error) {
	select {
	case err = <-sub.answer:
	case <-ctx.Done():
		err = inDoubt(ctx.Err())
	case <-sub.watcher.ctx.Done():
		err = errClosed
	}
	if err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// add adds a subscription. The result is sent to sub.answer later. If the last stream failed, add
// returns an error until a new stream may be opened.
func (w *watcher) add(sub *subscription) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failures > 0 && time.Now().Before(w.pause) {
		return w.failed
	}
	w.subs[sub] = struct{}{}
	switch {
	case sub.line != nil:
		w.lines[sub.name] = sub.line
	case sub.polite():
		w.waiters.enter(sub.name)
	}
	w.create(sub)
	if !w.started {
		w.started = true
		go w.run()
	}
	w.wakeRun()
	return nil
}

// create queues the request for a subscription's watch. The caller must hold w.mu.
func (w *watcher) create(sub *subscription) {
	w.lastID++
	sub.watch = w.lastID
	w.watches[sub.watch] = sub
	create := &pb.WatchCreateRequest{
		Key: sub.key, RangeEnd: sub.end, WatchId: sub.watch, PrevKv: sub.permits != nil,
	}
	w.queue = append(w.queue,
		&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
}

// Close ends the subscription.
func (sub *subscription) Close() {
	w := sub.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.subs, sub)
	sub.closed = true
	switch {
	case sub.line != nil && w.lines[sub.name] == sub.line:
		delete(w.lines, sub.name)
	case sub.polite():
		w.waiters.leave(sub.name)
	}
	sub.stopWaiting()
	if sub.watch == 0 {
		return
	}
	delete(w.watches, sub.watch)
	cancel := &pb.WatchCancelRequest{WatchId: sub.watch}
	w.queue = append(w.queue,
		&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: cancel}})
	sub.watch = 0
	w.wakeRun()
}

func (w *watcher) wakeRun() {
	select {
	case w.kick <- struct{}{}:
	default: // run has a signal already
	}
}

// run opens streams, one after the other.
func (w *watcher) run() {
	for w.needed() {
		served, err := w.serve()
		for _, tell := range w.lost(err, served) {
			tell()
		}
	}
}

// needed waits until a stream is needed and may be opened. It returns false when the session is
// closed.
func (w *watcher) needed() bool {
	for {
		w.mu.Lock()
		wanted, pause := len(w.subs) > 0, time.Until(w.pause)
		w.mu.Unlock()
		if w.ctx.Err() != nil {
			return false
		}
		if wanted && pause <= 0 {
			return true
		}
		var timer <-chan time.Time
		if wanted {
			timer = time.After(pause)
		}
		select {
		case <-timer:
		case <-w.kick:
		case <-w.ctx.Done():
		}
	}
}

// serve opens a stream and sends requests on it, until it breaks or the session is closed. served
// reports whether the server confirmed a watch.
func (w *watcher) serve() (served bool, err error) {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(w.ctx))
	defer cancel(nil)
	go w.check(ctx, cancel)
	stream, err := w.client.Watch(ctx, anyLength)
	if err != nil {
		return false, why(ctx, err)
	}
	broken := make(chan error, 1)
	go func() { broken <- w.receive(stream, &served) }()
	for {
		for _, req := range w.next() {
			if stream.Send(req) != nil {
				// The stream is broken. The call to w.receive will return the error.
				break
			}
		}
		select {
		case <-w.kick:
		case err := <-broken:
			return served, why(ctx, err)
		}
	}
}

// why returns the reason why a stream has ended.
func why(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// next returns the requests to send.
func (w *watcher) next() []*pb.WatchRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	requests := w.queue
	w.queue = nil
	for _, req := range requests {
		if create := req.GetCreateRequest(); create != nil {
			w.asked = append(w.asked, create.WatchId)
		}
	}
	return requests
}

// check ends a stream on which no message arrives. It has its own goroutine, since opening a stream
// and sending on it can block if the server doesn't answer.
func (w *watcher) check(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(w.checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if !w.alive() {
				cancel(errSilent)
				return
			}
			w.checked()
		case <-ctx.Done():
			return
		}
	}
}

// alive is called at intervals. If no message has arrived since the last call, it returns false.
// Otherwise it asks the server for a sign of life, which should arrive before the next call.
func (w *watcher) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.watches) == 0 {
		w.heard = true // no message is expected
		return true
	}
	if !w.heard {
		return false
	}
	w.heard = false
	w.queue = append(w.queue, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
		ProgressRequest: &pb.WatchProgressRequest{},
	}})
	w.wakeRun()
	return true
}

func (w *watcher) receive(stream pb.Watch_WatchClient, served *bool) error {
	for {
		res, err := stream.Recv()
		if err != nil {
			return err
		}
		wake, err := w.received(res, served)
		if wake != nil {
			wake()
		}
		if err != nil {
			return err
		}
	}
}

// received handles a message from the server. It returns a function that wakes subscribers, or nil.
// After an error the stream can't be used.
func (w *watcher) received(res *pb.WatchResponse, served *bool) (wake func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = true
	id := res.WatchId
	if res.Created && len(w.asked) > 0 {
		// The answer to a refused watch contains no id. But the answers come in the order of the
		// requests.
		id = w.asked[0]
		w.asked = w.asked[1:]
	}
	sub := w.watches[id]
	switch {
	case sub == nil: // the subscription was closed, or this is a sign of life
	case res.Canceled:
		wake, err = w.canceled(sub, res)
		return wake, err
	case res.Created:
		*served = true
		if sub.line != nil {
			sub.line.begin(res.Header.GetRevision())
		}
		if sub.active {
			w.waiters.unknown(sub.name)
			return sub.tells(nil, sub.wake), nil // the subscriber may have missed an event
		}
		sub.active = true
		sub.answer <- nil
	case sub.line != nil:
		return sub.line.changed(res.Events), nil
	case sub.watches:
		return sub.wake, nil
	default:
		return w.changed(sub, res.Events), nil
	}
	return nil, nil
}

// changed handles events about a lock's keys. It returns a function that wakes the subscriber, or
// nil if the subscriber needn't be woken now. The caller must hold w.mu.
func (w *watcher) changed(sub *subscription, events []*mvccpb.Event) func() {
	// Each variable is the revision of the last event of a kind, or 0 if there was none. After
	// inTurn, the lock may be free, and sessions that began to wait earlier go first. After atOnce,
	// it may be free, and sessions needn't wait for each other. At taken, the lock was acquired.
	var inTurn, atOnce, taken int64
	for i, e := range events {
		rev, gone := e.Kv.ModRevision, e.Type == mvccpb.DELETE
		switch {
		case bytes.Equal(e.Kv.Key, sub.key):
			if created(e) {
				taken = rev
				w.waiters.moved(sub.name, rev)
			} else if !gone {
				continue
			}
			sub.stopWaiting()
			if gone {
				inTurn = rev
			}
			if gone && sub.shared != nil && sub.shared.toRead() {
				atOnce = rev
			}
		case sub.permits != nil && bytes.HasPrefix(e.Kv.Key, sub.permits.keys):
			if staysOut(events[i:]) {
				continue
			}
			if created(e) {
				w.waiters.moved(sub.name, rev)
			}
			if sub.permits.changed(e); sub.permits.due {
				inTurn = rev
			} else {
				inTurn = 0
				sub.stopWaiting()
			}
		case gone && sub.shared != nil && bytes.HasPrefix(e.Kv.Key, sub.shared.notes):
			atOnce = rev
		case gone && sub.shared != nil && bytes.HasPrefix(e.Kv.Key, sub.shared.reads):
			inTurn = rev
		}
	}
	switch {
	case atOnce > taken:
		return sub.wake
	case inTurn <= taken:
		return nil
	}
	sub.stopWaiting()
	wait := w.waiters.courtesy(sub.name, inTurn)
	if wait == 0 {
		sub.permits.told()
		return sub.wake
	}
	sub.later = time.AfterFunc(wait, func() {
		w.mu.Lock()
		sub.permits.told()
		w.mu.Unlock()
		if w.ctx.Err() == nil {
			sub.wake()
		}
	})
	return nil
}

// created reports whether an event is the creation of a key.
func created(e *mvccpb.Event) bool {
	return e.Type == mvccpb.PUT && e.Kv.CreateRevision == e.Kv.ModRevision
}

// stopWaiting cancels a delayed wake-up, if there is one. The caller must hold the watcher's mutex.
func (sub *subscription) stopWaiting() {
	if sub.later != nil {
		sub.later.Stop()
	}
}

// canceled handles a message saying that the server has refused or canceled a watch. The caller
// must hold w.mu.
func (w *watcher) canceled(sub *subscription, res *pb.WatchResponse) (wake func(), err error) {
	delete(w.watches, sub.watch)
	sub.watch = 0
	refused := withKind(reason(res), false)
	switch {
	case isAny(refused.Err, staleToken):
		// The stream was opened with an auth token that is no longer valid. The next stream has a
		// new token.
		return nil, refused
	case !sub.active:
		delete(w.subs, sub)
		sub.answer <- refused
	case !res.Created:
		// The watch was too slow, and its next events were compacted. It begins again, at the
		// current revision.
		w.create(sub)
		w.wakeRun()
		return sub.tells(refused, nil), nil
	default:
		// The user is no longer permitted to watch. The next stream tries again. Until then,
		// waiters poll.
		return sub.wake, nil
	}
	return nil, nil
}

// tells returns a function that tells the subscriber that its subscription has broken, or is active
// again, and then calls wake if wake isn't nil. If there is nothing to tell, the result is wake
// itself. The caller must hold the watcher's mutex.
func (sub *subscription) tells(broken error, wake func()) func() {
	if sub.changed == nil || sub.broken == (broken != nil) {
		return wake
	}
	sub.broken = broken != nil
	return func() {
		sub.changed(broken)
		if wake != nil {
			wake()
		}
	}
}

var staleToken = []error{rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision}

// reason returns the reason why the server canceled a watch. If the watch was too slow, the
// server's answer contains a revision. Otherwise it contains the text of a gRPC error.
func reason(res *pb.WatchResponse) error {
	if res.CompactRevision != 0 {
		return rpctypes.ErrCompacted
	}
	text := res.CancelReason
	if _, desc, ok := strings.Cut(text, " desc = "); ok {
		text = desc
	}
	return rpctypes.Error(errors.New(text))
}

// lost records that a stream, and with it every watch, has ended. The watches are requested again
// on the next stream. Calls to Subscribe that are still waiting for an answer fail, unless a
// learner refused the stream. The returned functions tell subscribers that their subscriptions have
// broken.
func (w *watcher) lost(err error, served bool) (tell []func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		err = io.EOF
	}
	again := isLearners(err) && !served && w.learners < mostLearners
	if again {
		w.learners++
	} else {
		w.learners = 0
		w.failed = notDone(withKind(err, true))
		w.failures++
		if served {
			w.failures = 0
		}
		w.pause = time.Now().Add(backoff(w.failures))
	}
	w.queue, w.asked, w.heard = nil, nil, true
	clear(w.watches)
	for _, l := range w.lines {
		l.loaded = false
	}
	for sub := range w.subs {
		sub.watch = 0
		if !sub.active && !again {
			delete(w.subs, sub)
			sub.answer <- w.failed
			continue
		}
		w.create(sub)
		if again {
			continue // if the subscription is broken, its subscriber already knows
		}
		if t := sub.tells(w.failed, nil); t != nil && w.ctx.Err() == nil {
			tell = append(tell, t)
		}
	}
	return tell
}

// backoff returns how long to wait after a number of failures. It is partly random, so that the
// clients of a restarted server don't all come back at once.
func backoff(failures int) time.Duration {
	pause := min(minPause<<min(failures, 10), maxPause)
	return pause/2 + rand.N(pause/2)
}

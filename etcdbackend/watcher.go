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

// A watcher keeps all subscriptions of a session, on one stream of watches. The client library would
// restore a broken stream by itself, but not tell, and it spends two goroutines on every watch.
//
// Watches begin in the present: a server serves those that begin in the past from a loop that runs ten
// times a second. What was missed while there was no stream is made up for by a wake-up.
//
// One goroutine, run, opens streams and sends; receive receives; check looks whether anything was
// received. A stream is used until its first error.
type watcher struct {
	client     pb.WatchClient
	line       *line
	checkEvery time.Duration
	checked    func()          // is called as often while there is a stream
	ctx        context.Context // ends with the session
	stop       context.CancelFunc
	kick       chan struct{} // tells run that there is something to do

	mu       sync.Mutex // never held while anything is sent, received or called
	started  bool       // run
	lastID   int64      // of a watch; none is used twice
	subs     map[*subscription]struct{}
	lineups  map[string]*lineup      // the last that was subscribed to, by name
	watches  map[int64]*subscription // those that the server was told of on the present stream
	queue    []*pb.WatchRequest      // to be sent on the present stream
	asked    []int64                 // watches whose creation it has not answered yet, in order
	heard    bool                    // something was received since the last check
	failures int                     // streams in a row that served nobody
	learners int                     // … and that a learner has refused, and so count for nothing
	failed   error                   // of the last of them
	pause    time.Time               // no new stream before
}

type subscription struct {
	watcher *watcher
	name    string
	key     []byte
	end     []byte   // of what is watched, if that is more than the key
	shared  *shared  // of a read-write lock
	permits *permits // of a semaphore
	line    *lineup  // of a fair lock
	watches bool     // nobody waits
	wake    func()
	changed func(broken error) // nil if nobody looks on

	// Guarded by the watcher's mutex.
	watch  int64 // on the present stream; 0: none
	stands bool  // Subscribe has its answer
	broken bool  // since then, as was told
	closed bool
	answer chan error  // what Subscribe returns
	later  *time.Timer // wakes when those ahead have had their turns; nil if it never did
}

const (
	minPause = 20 * time.Millisecond
	maxPause = 2 * time.Second
)

func newWatcher(client pb.WatchClient, ln *line, checkEvery time.Duration, checked func()) *watcher {
	ctx, stop := context.WithCancel(context.Background())
	return &watcher{
		client:     client,
		line:       ln,
		checkEvery: checkEvery,
		checked:    checked,
		ctx:        ctx,
		stop:       stop,
		kick:       make(chan struct{}, 1),
		subs:       make(map[*subscription]struct{}),
		lineups:    make(map[string]*lineup),
		watches:    make(map[int64]*subscription),
		heard:      true,
	}
}

// close ends everything, and waits for nothing.
func (w *watcher) close() { w.stop() }

// shared is what is watched of a read-write lock beside its key.
type shared struct {
	reads, notes []byte
	toRead       func() bool // whether anybody may wait to read
}

// Subscribe returns once the server has confirmed that it watches the lock's key. Wake is called when
// the key is deleted, also when its lease has run out: a little later for each who is ahead in the line, and
// not if somebody takes the lock before. Of a read-write lock the keys of readers and notes are watched, too: a
// reader who leaves is told of likewise, whether others read or not, and so is the end of a write, if nobody of this client
// waits to read. Else that is told at once, as is the end of a note. Who only watches is told of all that happens to the keys, at once, and isn't in the line. Of a semaphore the keys of permits are watched: see [permits].
func (s *session) Subscribe(ctx context.Context, req backend.SubscribeRequest) (backend.Subscription, error) {
	if req.Kind == backend.Latch {
		return s.subscribeLatch(ctx, req)
	}
	if err := check(ctx, req.Kind); err != nil {
		return nil, err
	}
	if req.Kind == backend.Fair {
		return s.subscribeFair(ctx, req)
	}
	sub := &subscription{watcher: s.watcher, name: req.Name, key: s.store.key(req.Name), changed: req.Changed, answer: make(chan error, 1)}
	sub.wake = func() {
		s.others.remove(req.Name)
		req.Wake(0)
	}
	if req.Watches {
		sub.watches, sub.wake = true, func() { req.Wake(0) }
	}
	switch req.Kind {
	case backend.Permits:
		sub.end, sub.permits = append(s.store.key(req.Name), 2), &permits{keys: s.store.keysOf(req.Name, permitRole)}
	case backend.Read, backend.Write:
		sub.end = append(s.store.key(req.Name), 2)
		sub.shared = &shared{
			reads:  s.store.keysOf(req.Name, readRole),
			notes:  s.store.keysOf(req.Name, noteRole),
			toRead: func() bool { return req.Kind == backend.Read || s.waits.any(req.Name) },
		}
	}
	err := s.watcher.add(sub)
	if err != nil {
		return nil, err
	}
	if !sub.watches {
		s.line.stand(ctx, req.Name)
	}
	return sub.wait(ctx)
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

// add takes a subscription, which will be answered, or returns an error while no stream can be had.
func (w *watcher) add(sub *subscription) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failures > 0 && time.Now().Before(w.pause) {
		return w.failed
	}
	w.subs[sub] = struct{}{}
	switch {
	case sub.line != nil:
		w.lineups[sub.name] = sub.line
	case !sub.watches:
		w.line.enter(sub.name)
	}
	w.create(sub)
	if !w.started {
		w.started = true
		go w.run()
	}
	w.wakeRun()
	return nil
}

// create lets the server be told of a subscription. w.mu is held.
func (w *watcher) create(sub *subscription) {
	w.lastID++
	sub.watch = w.lastID
	w.watches[sub.watch] = sub
	create := &pb.WatchCreateRequest{Key: sub.key, RangeEnd: sub.end, WatchId: sub.watch, PrevKv: sub.permits != nil}
	w.queue = append(w.queue, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: create}})
}

// Close gives the subscription up.
func (sub *subscription) Close() {
	w := sub.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.subs, sub)
	sub.closed = true
	switch {
	case sub.line != nil && w.lineups[sub.name] == sub.line:
		delete(w.lineups, sub.name)
	case sub.line == nil && !sub.watches:
		w.line.leave(sub.name)
	}
	sub.stopWaiting()
	if sub.watch == 0 {
		return
	}
	delete(w.watches, sub.watch)
	w.queue = append(w.queue, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{
		WatchId: sub.watch,
	}}})
	sub.watch = 0
	w.wakeRun()
}

func (w *watcher) wakeRun() {
	select {
	case w.kick <- struct{}{}:
	default: // it is awake
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

// serve opens a stream and sends on it, until it breaks or the session is closed. It says whether a
// watch stood.
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
				// The stream has broken. Receiving tells why.
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

// why returns why a stream has ended.
func why(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// next returns what is to be sent.
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

// check ends a stream on which nothing is heard. It has a goroutine of its own, since opening a stream,
// and sending on it, may wait for a server that does not answer.
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

// alive asks for a sign of life if nothing was heard since the last call. It returns false if there
// was none since it has asked.
func (w *watcher) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.watches) == 0 {
		w.heard = true // nobody cares
		return true
	}
	if !w.heard {
		return false
	}
	w.heard = false
	w.queue = append(w.queue, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
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

// received notes a message, and returns whom to wake. An error says that the stream is of no use.
func (w *watcher) received(res *pb.WatchResponse, served *bool) (wake func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = true
	id := res.WatchId
	if res.Created && len(w.asked) > 0 {
		// A watch that is refused has no id in the answer. But answers come in order.
		id = w.asked[0]
		w.asked = w.asked[1:]
	}
	sub := w.watches[id]
	switch {
	case sub == nil: // closed meanwhile; or a sign of life
	case res.Canceled:
		wake, err = w.canceled(sub, res)
		return wake, err
	case res.Created:
		*served = true
		if sub.line != nil {
			sub.line.begin(res.Header.GetRevision())
		}
		if sub.stands {
			w.line.unknown(sub.name)
			return sub.tells(nil, sub.wake), nil // it has missed what happened meanwhile
		}
		sub.stands = true
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

// changed notes what has become of a lock, and returns whom to wake now. w.mu is held.
func (w *watcher) changed(sub *subscription, events []*mvccpb.Event) func() {
	// These are the revisions of the last event of each sort: the lock may be had, but those who are
	// ahead come first; it may be had at once; somebody has taken it.
	var inTurn, atOnce, taken int64
	for i, e := range events {
		rev, gone := e.Kv.ModRevision, e.Type == mvccpb.DELETE
		switch {
		case bytes.Equal(e.Kv.Key, sub.key):
			if created(e) {
				taken = rev
				w.line.moved(sub.name, rev)
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
				w.line.moved(sub.name, rev)
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
	wait := w.line.courtesy(sub.name, inTurn)
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

// created says whether an event is that a key has come.
func created(e *mvccpb.Event) bool {
	return e.Type == mvccpb.PUT && e.Kv.CreateRevision == e.Kv.ModRevision
}

// stopWaiting lets those who are ahead in the line go first no more. The watcher's mutex is held.
func (sub *subscription) stopWaiting() {
	if sub.later != nil {
		sub.later.Stop()
	}
}

// canceled notes that the server has ended a watch. w.mu is held.
func (w *watcher) canceled(sub *subscription, res *pb.WatchResponse) (wake func(), err error) {
	delete(w.watches, sub.watch)
	sub.watch = 0
	refused := withKind(reason(res), false)
	switch {
	case isAny(refused.Err, staleToken):
		// The stream belongs to a log-in that has run out. Another will have its own.
		return nil, refused
	case !sub.stands:
		delete(w.subs, sub)
		sub.answer <- refused
	case !res.Created:
		// It was too slow: what it should have been told next is compacted. It begins anew, from now.
		w.create(sub)
		w.wakeRun()
		return sub.tells(refused, nil), nil
	default:
		// It may not watch any more. The next stream tries again; until then waiters look by themselves.
		return sub.wake, nil
	}
	return nil, nil
}

// tells returns what tells whoever looks on that a subscription has broken, or stands again, and then wakes, if wake isn't nil. It is
// nil if there is nothing to be done. The watcher's mutex is held.
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

// reason returns why a watch was canceled. The server says it in the words of an error of gRPC's, unless it is that it was too slow.
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

// lost notes that a stream, and with it all the server knew, is gone. Those who are subscribed stay so,
// and will be when there is another; those who wait are told, so that they need not. It returns what tells those who look on.
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
	for _, l := range w.lineups {
		l.loaded = false
	}
	for sub := range w.subs {
		sub.watch = 0
		if !sub.stands && !again {
			delete(w.subs, sub)
			sub.answer <- w.failed
			continue
		}
		w.create(sub)
		if again {
			continue // it has been told, if it was broken
		}
		if t := sub.tells(w.failed, nil); t != nil && w.ctx.Err() == nil {
			tell = append(tell, t)
		}
	}
	return tell
}

// backoff is how long to wait after so many failures, jittered so that the clients of a server that
// comes back don't come all at once.
func backoff(failures int) time.Duration {
	pause := min(minPause<<min(failures, 10), maxPause)
	return pause/2 + rand.N(pause/2)
}

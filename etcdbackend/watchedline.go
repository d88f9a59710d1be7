package etcdbackend

import (
	"bytes"
	"context"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/seed951563bd/distsync/backend"
)

// A watchedLine records what a subscription knows about a fair lock, from one look and all later
// events. So from the event that freed the lock, a waiting call of this client can learn that it
// now holds the lock.
type watchedLine struct {
	session *session
	name    string
	key     []byte
	keys    []byte // prefix of the keys of places
	wake    func()
	granted func(backend.Grant)
	load    func() // starts a look

	// Guarded by the watcher's mutex.
	loaded bool
	since  int64           // the watch began at this revision
	missed []*mvccpb.Event // events before the first look
	line                   // the current state
	told   string          // the owner that was last reported as the holder
}

// watchLine makes a subscription watch the lock's key and the keys of all places in line. Once the
// server has confirmed the watch, the session reads these keys.
func (s *session) watchLine(sub *subscription, req backend.SubscribeRequest) {
	sub.line = &watchedLine{
		session: s, name: req.Name, key: sub.key, keys: s.store.keysOf(req.Name, lineRole),
		granted: req.Granted, wake: sub.wake,
		load: func() {
			s.leases.whileOpen(func(ctx context.Context) { s.lookAtWatched(ctx, sub) })
		},
	}
}

// lookAtWatched looks at a lock until a look succeeds, or the subscription is closed.
func (s *session) lookAtWatched(ctx context.Context, sub *subscription) {
	a := &attempt{id: holdID{name: sub.name}, traits: traits{fair: true}}
	for failures := 0; ; failures++ {
		at, err := s.lookAtLine(ctx, a)
		w := s.watcher
		w.mu.Lock()
		var tell func()
		if err == nil && !sub.closed {
			tell = sub.line.begun(at)
		}
		over := sub.closed || sub.line.loaded || ctx.Err() != nil
		w.mu.Unlock()
		if tell != nil {
			tell()
		}
		if over {
			return
		}
		select {
		case <-time.After(backoff(failures)):
		case <-ctx.Done():
			return
		}
	}
}

// line returns the state of a fair lock, if it is known without a request.
func (w *watcher) line(name string) (at line, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lines[name]
	if l == nil || !l.loaded {
		return line{}, false
	}
	return line{rev: l.rev, lock: l.lock, places: slices.Clone(l.places)}, true
}

// begin records that a watch began at revision rev. The state known so far may be out of date, so
// begin starts a look.
func (l *watchedLine) begin(rev int64) {
	l.loaded, l.since, l.missed, l.told = false, rev, nil, ""
	l.load()
}

// begun processes the result of a look. It returns a function that reports what has changed, or
// nil.
func (l *watchedLine) begun(at line) func() {
	if l.loaded || at.rev < l.since {
		return nil // there was another look, or this one is older than the watch
	}
	l.loaded, l.line = true, at
	missed := l.missed
	l.missed = nil
	if tell := l.happened(missed, l.grant(nil, 0)); tell != nil {
		return tell
	}
	if holder, _ := l.holder(); holder.free() {
		return l.wake // the lock may have become free since an earlier look
	}
	return nil
}

// changed processes events. It returns the function that reports them, or nil.
func (l *watchedLine) changed(events []*mvccpb.Event) func() {
	if l.loaded {
		return l.happened(events, nil)
	}
	if l.missed = append(l.missed, events...); len(l.missed) > mostMissed {
		// from now on, only a look after these events is useful
		l.since, l.missed = l.missed[len(l.missed)-1].Kv.ModRevision, nil
	}
	return nil
}

const mostMissed = 10_000

func (l *watchedLine) happened(events []*mvccpb.Event, grants []backend.Grant) func() {
	freed := false
	for i, e := range events {
		if e.Kv.ModRevision <= l.rev {
			continue
		}
		if !l.apply(e) {
			continue
		}
		if i+1 < len(events) && events[i+1].Kv.ModRevision == e.Kv.ModRevision {
			continue // a transaction's events happen at the same time, so the last one counts
		}
		grants = l.grant(grants, e.Kv.ModRevision)
		holder, _ := l.holder()
		freed = holder.free()
	}
	switch {
	case len(grants) > 0:
		return func() {
			for _, g := range grants {
				l.granted(g)
			}
		}
	case freed:
		return l.wake
	default:
		return nil
	}
}

// grant adds a grant for the current holder, which has held the lock since revision rev. It adds
// none if the holder belongs to another session, or was reported before.
func (l *watchedLine) grant(grants []backend.Grant, rev int64) []backend.Grant {
	holder, byPlace := l.holder()
	if holder.owner == l.told {
		return grants
	}
	l.told = holder.owner
	if byPlace {
		l.session.places.timeLeft(l.name, holder)
	}
	if g, ours := l.session.places.grant(l.name, holder, rev); ours && !holder.free() {
		grants = append(grants, g)
	}
	return grants
}

// apply processes one event. It reports whether the event concerns the lock or its line.
func (l *watchedLine) apply(e *mvccpb.Event) bool {
	gone := e.Type == mvccpb.DELETE
	if bytes.Equal(e.Kv.Key, l.key) {
		l.lock = record{}
		if !gone {
			l.lock, _ = decode(lockRole, e.Kv)
			l.lock.rev = e.Kv.ModRevision // the lock is taken even if decode failed
		}
		return true
	}
	owner, is := bytes.CutPrefix(e.Kv.Key, l.keys)
	if !is {
		return false
	}
	theirs := func(r record) bool { return r.owner == string(owner) }
	if gone {
		l.places = slices.DeleteFunc(l.places, theirs)
		return true
	}
	r, err := decode(lineRole, e.Kv)
	if err != nil || r.owner != string(owner) {
		return false
	}
	if i := slices.IndexFunc(l.places, theirs); i >= 0 {
		l.places[i] = r
		return true
	}
	l.places = append(l.places, r)
	if r.front > 0 {
		inOrder(l.places)
	}
	return true
}

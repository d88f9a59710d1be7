package etcdbackend

import (
	"cmp"
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/seed951563bd/distsync/backend"
)

// A note records that a writer is waiting, and how long it has waited. It is a key with its own
// lease. Each refused attempt of the writer writes the note again, but only if the hold that keeps
// the writer out hasn't changed. So a late request does nothing after the writer has acquired the
// lock. After the writer has given up, a late request fails, since the note's lease no longer
// exists.
//
// A reader's session decides whether a writer or the reader came first. It doesn't compare the
// clocks of two machines. Readers and writers state how long they have waited, and the server says
// how long ago the note was written, to within a second. If that isn't precise enough to tell the
// order, the revisions decide: if the reader's session remembers the revision at which the reader
// was first kept out, the reader needn't wait for a note that was created after that revision.
// Otherwise the reader waits.

// leaveNote leaves or renews the note of a waiting writer, if the hold that keeps the writer out
// hasn't changed. Otherwise it returns the scene that it found.
func (s *session) leaveNote(
	ctx context.Context, a *attempt, req backend.AcquireRequest, at scene,
) (left bool, found scene, err error) {
	if err := ended(ctx); err != nil {
		return false, at, err
	}
	id := noteOf(a.id)
	note, l, err := s.noteLease(ctx, id, s.store.ttl(req.Place))
	if err != nil {
		return false, at, err
	}
	now := time.Now()
	switch since := now.Add(-req.Waited); {
	case note.free():
		note.owner, note.since, note.first = req.Owner, since, req.Waited
	case since.Before(note.since):
		note.first += note.since.Sub(since)
		note.since = since
	}
	note.lease, note.waited = l.id, now.Sub(note.since)
	res, err := insist(ctx, patience(a.ttl), s.store.kv.Txn, &pb.TxnRequest{
		Compare: s.stillOut(a.id, at),
		Success: []*pb.RequestOp{s.store.put(id, note)},
		Failure: s.store.reads(a),
	})
	switch {
	case gone(err):
		s.holds.forget(id, l.id)
		s.holds.doubt(id)
		s.leases.distrust()
		return false, at, nil
	case err != nil:
		s.holds.suspect(id, l.id)
		return false, at, err
	}
	// Even if this request didn't write the note, an earlier, unanswered one might have.
	note.rev = res.Header.GetRevision()
	s.holds.wrote(id, note, l)
	if res.Succeeded {
		return true, at, nil
	}
	found, err = s.scene(a.id, res)
	return false, found, err
}

// stillOut returns conditions that are true while the hold that keeps a writer out is unchanged.
// Once the writer has acquired the lock, they are never all true again.
func (s *session) stillOut(id holdID, at scene) []*pb.Compare {
	if at.write.free() {
		reader := at.reads[0]
		return same(s.store.keyOf(holdID{id.name, reader.owner, readRole}), reader)
	}
	return same(s.store.keyOf(id), at.write)
}

// noteLease returns an owner's note as this session last wrote it, and a lease with which to write
// it again. The note is the zero record if the session remembers none. The lease is the note's own
// if that is ttl seconds long, and another one otherwise. If the lease began more than spareTime
// ago, noteLease sends a renewal without waiting for the answer.
func (s *session) noteLease(
	ctx context.Context, id holdID, ttl int64,
) (note record, l lease, err error) {
	note = s.holds.guess(id)
	l, ok := s.holds.granted(id, note.lease)
	if note.free() || !ok || l.ttl != ttl {
		if l, err = s.leases.get(ctx, ttl); err != nil {
			return record{}, lease{}, err
		}
		if !s.holds.use(ctx, id, l) {
			s.leases.put(l)
			return record{}, lease{}, ended(ctx)
		}
	}
	if begin := time.Now(); begin.Sub(l.since) > spareTime {
		s.keeper.send([]*ask{{lease: l.id, answer: func(granted int64, err error) {
			if err == nil && granted == l.ttl {
				s.holds.renewed(id, l.id, l.ttl, begin)
			}
		}}}, l.ttl)
	}
	return note, l, nil
}

// endNote deletes the note of an owner that releases its hold for writing, or stops waiting for
// one. It returns the lock's key as this session last wrote it. If the session doesn't remember
// that, endNote reads the key.
func (s *session) endNote(ctx context.Context, a *attempt) (key record, err error) {
	id, ttl := a.id, a.ttl
	lease := int64(0)
	if key = s.holds.guess(id); key.free() {
		res, err := s.store.look(ctx, ttl, rangeOp(s.store.keyOf(id)),
			rangeOp(s.store.keyOf(noteOf(id))), s.store.unshared(id.name).findOp(1))
		if err != nil {
			return record{}, err
		}
		kvs, err := ranges(res, 3)
		if err != nil {
			return record{}, notDone(err)
		}
		var errs [3]error
		var note record
		key, errs[0] = decodeOf(id, first(kvs[0]))
		note, errs[1] = decodeOf(noteOf(id), first(kvs[1]))
		errs[2] = none(kvs[2])
		if err := cmp.Or(errs[:]...); err != nil {
			return record{}, err
		}
		lease = note.lease
	}
	return key, notDone(s.giveBack(ctx, noteOf(id), lease, ttl))
}

// dropNote records that a note was deleted because its owner has acquired the lock for writing.
func (s *session) dropNote(id holdID) {
	if note := s.holds.guess(id); !note.free() {
		if l, ok := s.holds.spare(id, note.lease); ok {
			s.leases.put(l)
		}
	}
	s.holds.doubt(id)
}

// barred reports whether notes keep a reader out. If they do, remaining is the longest time for
// which they might, or negative if that time isn't known.
func (s *session) barred(
	ctx context.Context, w wait, notes []record,
) (remaining time.Duration, out bool) {
	left, err := s.remainingAll(ctx, leasesOf(notes))
	if err != nil {
		return -1, true
	}
	waited := time.Since(w.began)
	for i, n := range notes {
		oldest := n.waited + time.Duration(left[i].granted-left[i].seconds)*time.Second
		switch {
		case left[i].seconds < 0, waited >= oldest:
		case w.rev != 0 && n.created > w.rev && n.first < time.Second:
		default:
			remaining, out = max(remaining, lasts(left[i].seconds)), true
		}
	}
	return remaining, out
}

// waits records which of a session's readers were kept out and still wait.
type waits struct {
	mu      sync.Mutex
	entries map[holdID]wait
	readers map[string]int // the number of readers in entries, by lock
}

type wait struct {
	began time.Time
	rev   int64 // the revision at which the reader was first kept out; 0 if not known
}

// find returns the wait of a reader that has waited for the given time. If ws contains a wait of
// that reader that began at about the same time, find returns it. Otherwise it returns a new one.
func (ws *waits) find(id holdID, waited time.Duration) wait {
	began := time.Now().Add(-waited)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w, known := ws.entries[id]; known && waited > 0 && w.began.Sub(began).Abs() < time.Second {
		return w
	}
	return wait{began: began}
}

// goOn records that a reader was kept out at a revision.
func (ws *waits) goOn(id holdID, w wait, rev int64) {
	if w.rev != 0 {
		return
	}
	w.rev = rev
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.entries == nil || len(ws.entries) >= mostNames {
		ws.entries, ws.readers = make(map[holdID]wait), make(map[string]int)
	}
	if _, known := ws.entries[id]; !known {
		ws.readers[id.name]++
	}
	ws.entries[id] = w
}

// end forgets a reader that no longer waits.
func (ws *waits) end(id holdID) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if _, known := ws.entries[id]; !known {
		return
	}
	delete(ws.entries, id)
	if ws.readers[id.name]--; ws.readers[id.name] == 0 {
		delete(ws.readers, id.name)
	}
}

// any reports whether any of the session's readers wait for the named lock. Readers that gave up
// without being removed still count.
func (ws *waits) any(name string) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.readers[name] > 0
}

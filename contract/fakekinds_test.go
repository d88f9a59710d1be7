package contract

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// fakeKinds is the state that the sessions of a fakeStore share, for faults in the differences
// between kinds.
type fakeKinds struct {
	fault string

	mu      sync.Mutex
	readers map[string][]string       // those that have acquired a Read, by name of the lock
	writer  map[string]string         // the last to acquire the Write
	waiting map[string][]string       // those that have left a note
	places  map[holdID]time.Time      // when the first note of each ends
	owed    []backend.ReleaseRequest  // that were refused
	counts  map[holdID]int            // the Reads of each
	kinds   map[string]bool           // whether a name was used for read-write locks last
	tokens  map[string]uint64         // the last token of each name
	drawn   map[holdID]uint64         // tokens that were drawn too early
	muted   map[backend.Kind]struct{} // subscriptions of these kinds are not woken
	silent  bool                      // nobody is woken
}

func newFakeKinds(fault string) *fakeKinds {
	return &fakeKinds{
		fault:   fault,
		readers: make(map[string][]string),
		writer:  make(map[string]string),
		waiting: make(map[string][]string),
		places:  make(map[holdID]time.Time),
		counts:  make(map[holdID]int),
		kinds:   make(map[string]bool),
		tokens:  make(map[string]uint64),
		drawn:   make(map[holdID]uint64),
		muted:   make(map[backend.Kind]struct{}),
	}
}

// with runs f with the mutex held.
func (st *fakeKinds) with(f func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	f()
}

// kindsFake is a session of membackend with one of these faults.
type kindsFake struct {
	memSession
	st *fakeKinds
}

var never = 20 * time.Hour // a lease that outlasts every case

// name is what the store makes of a lock's name.
func (s *kindsFake) name(k backend.Kind, name string) string {
	switch {
	case s.st.fault == "names are free for other kinds" && lengthens(k):
		return name + " for reading and writing"
	case s.st.fault == "fenced and plain are two locks" && k == backend.Fenced:
		return name + " with a token"
	case s.st.fault == "fair and plain are two locks" && k == backend.Fair:
		return name + " with a line"
	}
	return name
}

// check is what every step begins with.
func (s *kindsFake) check(k backend.Kind, name string) (err error) {
	switch s.st.fault {
	case "undeclared kinds are unknown":
		if lengthens(k) {
			return errors.New("membackend: what is that?")
		}
	case "a name keeps its kind":
		s.st.with(func() {
			if readWrite, used := s.st.kinds[name]; used && readWrite != lengthens(k) {
				err = &backend.Error{Kind: backend.Refused, Err: backend.ErrConflict}
			}
		})
	}
	return err
}

func (s *kindsFake) look(
	ctx context.Context, k backend.Kind, name, owner string,
) backend.LookResult {
	res, _ := s.memSession.Look(ctx, backend.LookRequest{Kind: k, Name: name, Owner: owner})
	return res
}

func (s *kindsFake) force(ctx context.Context, k backend.Kind, name string) {
	s.memSession.ForceRelease(ctx, backend.ForceReleaseRequest{Kind: k, Name: name})
}

func (s *kindsFake) Acquire(
	ctx context.Context, req backend.AcquireRequest,
) (res backend.AcquireResult, err error) {
	if err := s.check(req.Kind, req.Name); err != nil {
		return res, err
	}
	req.Name = s.name(req.Kind, req.Name)
	var early uint64
	switch req.Kind {
	case backend.Fenced:
		early = s.draw(req)
	case backend.Read:
		if res, done := s.beforeRead(ctx, &req); done {
			return res, nil
		}
	case backend.Write:
		s.beforeWrite(ctx, &req)
	}
	res, err = s.memSession.Acquire(ctx, req)
	if err != nil {
		return res, err
	}
	if res.Acquired {
		s.st.with(func() { s.st.kinds[req.Name] = lengthens(req.Kind) })
	}
	switch req.Kind {
	case backend.Fenced:
		s.number(req, &res, early)
	case backend.Read:
		s.afterRead(ctx, req, &res)
	case backend.Write:
		s.afterWrite(ctx, req, &res)
	}
	return res, nil
}

// draw draws a token for an owner that hasn't got one.
func (s *kindsFake) draw(req backend.AcquireRequest) (token uint64) {
	s.st.with(func() {
		id := holdID{req.Name, req.Owner}
		if s.st.drawn[id] == 0 {
			s.st.tokens[req.Name]++
			s.st.drawn[id] = s.st.tokens[req.Name]
		}
		token = s.st.drawn[id]
	})
	return token
}

// number replaces the token of a Fenced lock.
func (s *kindsFake) number(req backend.AcquireRequest, res *backend.AcquireResult, early uint64) {
	if !res.Acquired {
		return
	}
	s.st.with(func() {
		switch s.st.fault {
		case "token stands still":
			res.Token = 7
		case "token grows with re-entries":
			s.st.tokens[req.Name]++
			res.Token = s.st.tokens[req.Name]
		case "tokens begin anew after a forced release":
			if res.Count == 1 {
				s.st.tokens[req.Name] = s.st.tokens[req.Name]%1000 + 1
			}
			res.Token = s.st.tokens[req.Name]
		case "token is drawn before the lock":
			res.Token = early
		}
	})
}

// beforeRead is what goes wrong before a Read is acquired, or instead.
func (s *kindsFake) beforeRead(
	ctx context.Context, req *backend.AcquireRequest,
) (res backend.AcquireResult, done bool) {
	read, write := s.look(ctx, backend.Read, req.Name, req.Owner),
		s.look(ctx, backend.Write, req.Name, req.Owner)
	switch s.st.fault {
	case "read is exclusive":
		if read.Held && read.Count == 0 {
			return backend.AcquireResult{Remaining: read.Remaining}, true
		}
	case "own read is refused":
		if write.Count > 0 {
			return backend.AcquireResult{Remaining: write.Remaining}, true
		}
	case "read is granted beside another's write":
		if write.Held && write.Count == 0 {
			return backend.AcquireResult{Acquired: true, Count: 1}, true
		}
	case "read in two steps":
		if write.Held {
			break
		}
		// The two steps are as far apart as it takes a writer to come, on a busy machine too.
		for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end) && !write.Held; {
			time.Sleep(50 * time.Microsecond)
			write = s.look(ctx, backend.Write, req.Name, req.Owner)
		}
		s.force(ctx, backend.Write, req.Name)
	case "read keeps the shorter lease":
		s.memSession.Release(ctx, backend.ReleaseRequest{
			Kind: backend.Read, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
		})
		if read.Count > 0 {
			req.Waited = never
		}
	case "readers never end":
		req.Lease = never
	case "own read never ends":
		if write.Count > 0 {
			req.Lease = never
		}
	case "notes don't outlive a conflict":
		s.st.with(func() {
			for _, late := range s.st.owed {
				s.memSession.Release(ctx, late)
			}
			s.st.owed = nil
		})
	case "notes bar who came before":
		req.Waited = 0
	case "notes bar who is inside":
		if read.Count > 0 {
			res, _ := s.memSession.Acquire(ctx, backend.AcquireRequest{
				Kind: backend.Read, Name: req.Name, Owner: "probe", Lease: req.Lease,
				Waited: req.Waited,
			})
			s.memSession.Release(ctx, backend.ReleaseRequest{
				Kind: backend.Read, Name: req.Name, Owner: "probe", Lease: req.Lease,
			})
			return res, !res.Acquired
		}
	}
	return res, false
}

// afterRead is what goes wrong when a Read was acquired, or wasn't.
func (s *kindsFake) afterRead(
	ctx context.Context, req backend.AcquireRequest, res *backend.AcquireResult,
) {
	if !res.Acquired {
		if write := s.look(ctx, backend.Write, req.Name,
			""); s.st.fault == "barred reads are told half of it" && !write.Held {
			res.Remaining /= 2
		}
		return
	}
	var readers []string
	s.st.with(func() {
		id := holdID{req.Name, req.Owner}
		s.st.counts[id]++
		s.st.readers[req.Name] = append(s.st.readers[req.Name], req.Owner)
		readers = s.st.readers[req.Name]
		if s.st.fault == "read counts" {
			res.Count = s.st.counts[id]
		}
	})
	if s.st.fault == "readers have one expiry" {
		s.renewAll(ctx, req.Name, readers, req.Lease)
	}
}

// renewAll prolongs what several owners read.
func (s *kindsFake) renewAll(
	ctx context.Context, name string, owners []string, lease time.Duration,
) {
	for _, owner := range owners {
		s.memSession.Renew(ctx, backend.RenewRequest{
			Kind: backend.Read, Name: name, Owner: owner, Lease: lease,
		})
	}
}

// beforeWrite is what goes wrong before a Write is acquired.
func (s *kindsFake) beforeWrite(ctx context.Context, req *backend.AcquireRequest) {
	read, id := s.look(ctx, backend.Read, req.Name, req.Owner), holdID{req.Name, req.Owner}
	switch s.st.fault {
	case "write is granted beside readers":
		if s.look(ctx, backend.Write, req.Name, "") == (backend.LookResult{}) && read.Count == 0 {
			s.force(ctx, backend.Read, req.Name)
		}
	case "readers become writers":
		s.st.with(func() {
			if read.Count > 0 && !s.others(req.Name, req.Owner) {
				s.memSession.Release(ctx, backend.ReleaseRequest{
					Kind: backend.Read, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
				})
			}
		})
	case "notes are not left":
		req.Place = 0
	case "notes never end":
		if req.Place > 0 {
			req.Place = never
		}
	case "notes keep their first end":
		s.st.with(func() {
			if first := s.st.places[id]; time.Now().Before(first) {
				req.Place = time.Until(first)
			} else {
				s.st.places[id] = time.Now().Add(req.Place)
			}
		})
	case "notes forget since when":
		s.memSession.Release(ctx, backend.ReleaseRequest{
			Kind: backend.Write, Name: req.Name, Owner: "nobody", Lease: req.Lease,
		})
		if s.look(ctx, backend.Write, req.Name, req.Owner).Count == 0 {
			s.memSession.Release(ctx, backend.ReleaseRequest{
				Kind: backend.Write, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
			})
		}
	}
}

// others says whether another owner has read a lock. The caller has s.st.mu.
func (s *kindsFake) others(name, owner string) bool {
	for _, other := range s.st.readers[name] {
		if other != owner {
			return true
		}
	}
	return false
}

// ghost is another's name for an owner.
func ghost(owner string) string { return owner + ", its ghost" }

// afterWrite is what goes wrong when a Write was acquired, or wasn't.
func (s *kindsFake) afterWrite(
	ctx context.Context, req backend.AcquireRequest, res *backend.AcquireResult,
) {
	s.st.with(func() {
		if res.Acquired {
			s.st.writer[req.Name] = req.Owner
		} else {
			s.st.waiting[req.Name] = append(s.st.waiting[req.Name], req.Owner)
		}
	})
	switch {
	case res.Acquired && res.Count > 1 && s.st.fault == "many notes keep a writer out":
		s.st.with(func() {
			if len(s.st.waiting[req.Name]) > 3 {
				undo := backend.ReleaseRequest{
					Kind: req.Kind, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
				}
				s.memSession.Release(ctx, undo)
				*res = backend.AcquireResult{Remaining: req.Lease}
			}
		})
	case res.Acquired:
	case s.st.fault == "write is told half of it":
		res.Remaining /= 2
	case s.st.fault == "notes outlive the acquisition":
		req.Owner = ghost(req.Owner)
		s.memSession.Acquire(ctx, req)
	}
}

func (s *kindsFake) Release(
	ctx context.Context, req backend.ReleaseRequest,
) (res backend.ReleaseResult, err error) {
	if err := s.check(req.Kind, req.Name); err != nil {
		return res, err
	}
	req.Name = s.name(req.Kind, req.Name)
	write := s.look(ctx, backend.Write, req.Name, req.Owner)
	waits := req.Kind == backend.Write && write.Count == 0
	switch s.st.fault {
	case "notes are not given up":
		if waits {
			return res, nil
		}
	case "giving up takes all notes":
		if waits {
			s.giveUpAll(ctx, req)
		}
	case "notes outlive the acquisition":
		if waits {
			other := req
			other.Owner = ghost(req.Owner)
			s.memSession.Release(ctx, other)
		}
	case "note is given up silently":
		if waits {
			defer s.mute()()
		}
	case "end of a write doesn't wake":
		if req.Kind == backend.Write && !waits {
			defer s.mute()()
		}
	case "last reader doesn't wake":
		if req.Kind == backend.Read {
			defer s.mute()()
		}
	case "fenced and plain wake their own":
		if !lengthens(req.Kind) {
			s.st.with(func() { s.st.muted[backend.Exclusive+backend.Fenced-req.Kind] = struct{}{} })
			defer s.st.with(func() { clear(s.st.muted) })
		}
	}
	res, err = s.memSession.Release(ctx, req)
	if s.st.fault == "notes don't outlive a conflict" && errors.Is(err, backend.ErrConflict) {
		s.st.with(func() { s.st.owed = append(s.st.owed, req) })
	}
	if err != nil || res.Outcome != backend.Freed {
		return res, err
	}
	s.st.with(func() {
		id := holdID{req.Name, req.Owner}
		delete(s.st.drawn, id)
		delete(s.st.counts, id)
		delete(s.st.kinds, req.Name)
	})
	if s.st.fault == "write takes its owner's read along" && req.Kind == backend.Write {
		s.memSession.Release(ctx, backend.ReleaseRequest{
			Kind: backend.Read, Name: req.Name, Owner: req.Owner, Lease: req.Lease,
		})
	}
	return res, err
}

// giveUpAll takes back the notes of all waiters.
func (s *kindsFake) giveUpAll(ctx context.Context, req backend.ReleaseRequest) {
	var waiting []string
	s.st.with(func() { waiting = s.st.waiting[req.Name] })
	for _, owner := range waiting {
		if s.look(ctx, backend.Write, req.Name, owner).Count == 0 {
			s.memSession.Release(ctx, backend.ReleaseRequest{
				Kind: backend.Write, Name: req.Name, Owner: owner, Lease: req.Lease,
			})
		}
	}
}

// mute lets nobody be woken until what it returns is called.
func (s *kindsFake) mute() (unmute func()) {
	s.st.with(func() { s.st.silent = true })
	return func() { s.st.with(func() { s.st.silent = false }) }
}

func (s *kindsFake) Renew(
	ctx context.Context, req backend.RenewRequest,
) (res backend.RenewResult, err error) {
	if err := s.check(req.Kind, req.Name); err != nil {
		return res, err
	}
	req.Name = s.name(req.Kind, req.Name)
	res, err = s.memSession.Renew(ctx, req)
	if req.Kind == backend.Read &&
		(s.st.fault == "renewal of a read is everybody's" ||
			s.st.fault == "readers have one expiry") {
		var readers []string
		s.st.with(func() { readers = s.st.readers[req.Name] })
		s.renewAll(ctx, req.Name, readers, req.Lease)
	}
	return res, err
}

func (s *kindsFake) ForceRelease(
	ctx context.Context, req backend.ForceReleaseRequest,
) (res backend.ForceReleaseResult, err error) {
	if err := s.check(req.Kind, req.Name); err != nil {
		return res, err
	}
	req.Name = s.name(req.Kind, req.Name)
	var owner string
	s.st.with(func() {
		owner = s.st.writer[req.Name]
		if s.st.fault == "tokens begin anew after a forced release" {
			delete(s.st.tokens, req.Name)
		}
		delete(s.st.kinds, req.Name)
	})
	own := s.look(ctx, backend.Read, req.Name, owner).Count > 0
	switch s.st.fault {
	case "force of reads takes writes":
		if req.Kind == backend.Read {
			s.force(ctx, backend.Write, req.Name)
		}
	case "force of a write takes reads":
		if req.Kind == backend.Write {
			s.force(ctx, backend.Read, req.Name)
		}
	}
	res, err = s.memSession.ForceRelease(ctx, req)
	if s.st.fault == "force of a write leaves its owner's read" && req.Kind == backend.Write &&
		res.Released && own {
		s.memSession.Acquire(ctx, backend.AcquireRequest{
			Kind: backend.Read, Name: req.Name, Owner: owner, Lease: time.Hour,
		})
	}
	return res, err
}

func (s *kindsFake) Look(
	ctx context.Context, req backend.LookRequest,
) (res backend.LookResult, err error) {
	if err := s.check(req.Kind, req.Name); err != nil {
		return res, err
	}
	req.Name = s.name(req.Kind, req.Name)
	return s.memSession.Look(ctx, req)
}

func (s *kindsFake) KeepPlaces(
	ctx context.Context, req backend.PlacesRequest,
) (res backend.PlacesResult, err error) {
	if err := s.check(req.Kind, req.Name); err != nil {
		return res, err
	}
	req.Name = s.name(req.Kind, req.Name)
	return s.memSession.KeepPlaces(ctx, req)
}

func (s *kindsFake) Subscribe(
	ctx context.Context, req backend.SubscribeRequest,
) (backend.Subscription, error) {
	if err := s.check(req.Kind, req.Name); err != nil {
		return nil, err
	}
	req.Name = s.name(req.Kind, req.Name)
	wake := req.Wake
	req.Wake = func(w backend.Wakeup) {
		var muted bool
		s.st.with(func() {
			_, muted = s.st.muted[req.Kind]
			muted = muted || s.st.silent
		})
		if !muted {
			wake(w)
		}
	}
	return s.memSession.Subscribe(ctx, req)
}

// kindFaults are ways in which a store can be wrong about kinds.
var kindFaults = []storeFault{
	{"undeclared kinds are served", "kinds/undeclared", false},
	{"undeclared kinds are unknown", "kinds/undeclared", false},
	{"token stands still", "fenced/token", true},
	{"tokens begin anew after a forced release", "fenced/token", true},
	{"token grows with re-entries", "fenced/token of a re-entry", true},
	{"token is drawn before the lock", "fenced/tokens in order", true},
	{"fenced and plain are two locks", "fenced/and plain", true},
	{"fenced and plain wake their own", "fenced/and plain", false},
	{"read counts", "read/shared", true},
	{"read is exclusive", "read/shared", true},
	{"write is granted beside readers", "read/excludes writers", true},
	{"write is told half of it", "read/excludes writers", true},
	{"read keeps the shorter lease", "read/lease", true},
	{"readers have one expiry", "read/each ends by itself", true},
	{"readers never end", "read/all end", true},
	{"renewal of a read is everybody's", "read/renew", true},
	{"force of reads takes writes", "read/force", true},
	{"owners fold case", "read/owners", false},
	{"batch has one kind", "read/batch", false},
	{"read in two steps", "read/and write at once", false},
	{"read is granted beside another's write", "write/excludes readers", true},
	{"own read is refused", "write/own read", true},
	{"write takes its owner's read along", "write/downgrade", true},
	{"readers become writers", "write/no upgrade", true},
	{"force of a write takes reads", "write/force", true},
	{"force of a write leaves its owner's read", "write/force", true},
	{"own read never ends", "write/own read ends", true},
	{"notes are not left", "note/bars", true},
	{"notes bar who came before", "note/who came before", true},
	{"notes bar who is inside", "note/those inside", true},
	{"notes never end", "note/ends", true},
	{"notes keep their first end", "note/renewed", true},
	{"notes forget since when", "note/renewed", true},
	{"notes are not given up", "note/given up", true},
	{"giving up takes all notes", "note/given up", true},
	{"notes don't outlive a conflict", "note/conflict", true},
	{"many notes keep a writer out", "note/many", false},
	{"notes outlive the acquisition", "note/acquired", true},
	{"barred reads are told half of it", "note/of several", true},
	{"end of a write doesn't wake", "notifier/write", false},
	{"note is given up silently", "notifier/note", false},
	{"last reader doesn't wake", "notifier/last reader", false},
	{"names are free for other kinds", "kinds/of one name", true},
	{"a name keeps its kind", "kinds/after another", true},
	{"renew only prolongs", "as fenced/renew/held", false},
	{"leases run out early", "as read/lease/kept", false},
	{"re-entry doesn't count", "as write/acquire/again", false},
}

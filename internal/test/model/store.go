package main

// An entry is the store's data under the key: the number of the acquisition that holds the lock,
// the hold count, and the remaining time. After that time the entry may expire at any moment. The
// zero entry is a free key.
type entry struct{ number, count, left uint8 }

// The kinds of requests.
const (
	none uint8 = iota
	acquisition
	reentry
	partialRelease
	lastRelease
	backRelease // a release in the background
	renewal
	force
)

var kinds = [...]string{
	"", "acquisition", "re-entry", "partial release", "last release", "take-back", "renewal",
	"ForceUnlock",
}

// The replies to requests.
const (
	pending uint8 = iota // the request hasn't been carried out
	acquired
	heldByAnother
	freed
	left
	notHeld
	renewed
	renewedNot
)

var replies = [...]string{
	"", "acquired", "held by another", "freed", "holds left", "not held", "renewed", "not held",
}

// The values of request.who that aren't goroutines.
const (
	watchdog uint8 = 8 + iota
	nobody         // nobody awaits the reply, but the request may still be carried out
	downgrader
)

// A request is a message in the network: either a request to the store or its reply.
type request struct {
	kind, number, who uint8
	lease             uint8 // the lease that the request sets in the store
	left              uint8 // the rest of that lease, which begins just before the request is sent
	watch             uint8 // the request asks for a renewed hold
	reply             uint8
	count             uint8 // the store's count after the request was carried out
	before            uint8 // 1 if the request was carried out before the store ended the hold
}

func (r request) key() (k uint64) {
	for _, f := range [...]uint8{r.kind, r.number, r.who, r.reply, r.left, r.lease, r.count,
		r.before, r.watch} {
		k = k<<6 | uint64(f)
	}
	return k
}

// send puts a request into the network. It returns false if the model's bounds don't allow it.
func (m *Holds) send(s *HoldsState, r request) bool {
	if r.kind == acquisition || r.kind == reentry {
		most := 1
		if m.same(s, s.store.number, r.number) {
			most += int(s.store.count)
		}
		for _, q := range s.requests {
			if (q.kind == acquisition || q.kind == reentry) && q.reply == pending &&
				m.same(s, q.number, r.number) {
				most++
			}
		}
		if most > m.Count {
			return false
		}
	}
	for i := range m.Requests {
		if s.requests[i].kind == none {
			r.left = r.lease
			s.requests[i] = r
			return true
		}
	}
	return false
}

// carryOut carries out a request in the store, as the scripts do.
func (m *Holds) carryOut(s *HoldsState, r *request) {
	e := &s.store
	mine := m.same(s, e.number, r.number)
	switch r.kind {
	case acquisition, reentry:
		switch {
		case e.number == 0:
			*e, r.reply = entry{r.number, 1, r.lease}, acquired
		case mine:
			*e, r.reply = entry{r.number, e.count + 1, r.lease}, acquired
		default:
			r.reply = heldByAnother
		}
	case partialRelease, lastRelease, backRelease:
		if !mine {
			r.reply = notHeld
			break
		}
		s.mixedUp = s.mixedUp || e.number != r.number
		e.count--
		e.left, r.reply = r.lease, left
		if e.count == 0 {
			*e, r.reply = entry{}, freed
		}
	case renewal:
		r.reply = renewedNot
		if mine {
			e.left, r.reply = r.lease, renewed
		}
	case force:
		s.letGo()
		*e, r.reply = entry{}, freed
	}
	r.count = e.count
}

// letGo records that the store is about to end the current hold before its lease expires.
func (s *HoldsState) letGo() {
	n := s.store.number
	if n == 0 || s.numbers[n].use != live {
		return
	}
	s.numbers[n].struck = 1
	for i := range s.requests {
		if r := &s.requests[i]; r.reply != pending && r.number == n {
			r.before = 1
		}
	}
}

// fallBack makes the store fail over to a replica with older data.
func (s *HoldsState) fallBack() {
	if was, is := s.store, s.replica; was.number != is.number || was.count > is.count ||
		was.left > is.left {
		s.letGo()
	}
	s.store = s.replica
}

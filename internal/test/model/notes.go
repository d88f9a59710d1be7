package main

import "fmt"

// Notes is the model of waiting for a read-write lock. A waiting writer leaves a note in the store,
// which keeps later readers out. The model covers these notes, the queues of two clients, reads
// that further readers can join, and wake-ups. Only the head of a queue sends requests.
// Subscriptions exist from the start: the Waits model covers how they begin and end. No hold is
// lost. The fields of Notes limit what is explored.
//
// The model has no clock. It numbers the arrivals instead. A real attempt tells the store how long
// the party has waited, and the store subtracts that from its own time to get the time of arrival.
// So if an attempt is late, the party seems to arrive later than it did. A hold or note may end at
// any time, unless its owner is still renewing it.
type Notes struct {
	// Clients lists the parties of each client, with one letter per party. R reads. T reads, but
	// tries only once, outside the queue. W writes. D writes, and can also read during its write,
	// and then go on reading after it.
	Clients  [2]string
	Unknowns uint8 // unanswered attempts and releases
	Losses   uint8 // lost messages
	Crashes  uint8 // crashes of client B
	HandOver bool
	Punctual bool // no attempt takes effect after its number was released in the background
	Mutation mutation
}

const maxNoted = 5

// NotesState is a state of the model. A number is a party's index + 1, and stands for the party's
// owner string.
type NotesState struct {
	write    uint8 // in the store: the number that writes
	read     uint8 // in the store: bit set of the parties that read
	note     [maxNoted]uint8
	came     [maxNoted]uint8 // for each party: its position in the order of arrival
	last     uint8
	at       [maxNoted]uint8
	on       [maxNoted]uint8 // for each party: the number of its claim, or 0
	shared   [2]uint8        // for each client: the number of the claim that readers can join
	fresh    [2]bool         // for each client's queue, as in the Waits model
	woken    [2]bool
	message  [2]bool
	timer    [2]bool
	silent   [2]bool         // the head missed an event, because no message was sent or it got lost
	kept     [2]bool         // the head was refused because of a note
	asked    uint8           // numbers that sent an attempt
	unsure   uint8           // numbers with an unanswered attempt
	late     uint8           // the parties whose abandoned attempt may still be carried out
	back     uint8           // numbers that are being released in the background
	behind   [maxNoted]uint8 // for each party: the writers that came earlier and still wait
	crashed  bool
	unknowns uint8
	losses   uint8
	overtook bool // W1 is violated
	jumped   bool // W2 is violated
}

// readingToo is the state of a party that writes and reads. The Waits model defines all other
// states.
const readingToo = finished + 1

// Init returns the initial state, with a free lock and no parties.
func (m *Notes) Init() NotesState { return NotesState{} }

func (m *Notes) all() int { return len(m.Clients[0]) + len(m.Clients[1]) }

func (m *Notes) client(p int) int {
	if p < len(m.Clients[0]) {
		return 0
	}
	return 1
}

func (m *Notes) kind(p int) byte { return (m.Clients[0] + m.Clients[1])[p] }

func (m *Notes) writes(p int) bool { return m.kind(p) == 'W' || m.kind(p) == 'D' }

// once reports whether a party tries only once.
func (m *Notes) once(p int) bool { return m.kind(p) == 'T' }

func (m *Notes) name(p int) string {
	c := m.client(p)
	return fmt.Sprintf("%c%d (%s)", 'A'+c, p-c*len(m.Clients[0])+1,
		map[byte]string{'R': "reader", 'T': "reader", 'W': "writer", 'D': "writer"}[m.kind(p)])
}

func (s *NotesState) waits(p int) bool {
	switch s.at[p] {
	case asleep, pausing, asking, refused:
		return true
	}
	return false
}

// head returns the head of a client's queue, or -1.
func (m *Notes) head(s *NotesState, c int) int {
	first := -1
	for p := range m.all() {
		if m.client(p) == c && s.waits(p) && !m.once(p) &&
			(first < 0 || s.came[p] < s.came[first]) {
			first = p
		}
	}
	return first
}

// Bad checks these rules. L2: if the head of a queue could enter, it will try. L2m: the head will
// try even without its timer, unless a message didn't reach it or its last attempt was unanswered.
// W1: the store admits no reader ahead of a writer whose note was there when the reader came. W2:
// no reader joins ahead of a writer that waits in the reader's own client. G1 and G3: each hold and
// each note in the store is known to a client.
func (m *Notes) Bad(s NotesState) []string {
	var bad []string
	check := func(property string, holds bool) {
		if !holds {
			bad = append(bad, property)
		}
	}
	for c := range 2 {
		h := m.head(&s, c)
		if h < 0 || s.at[h] != asleep && s.at[h] != pausing || !m.mayEnter(&s, h) ||
			m.pending(&s, c) {
			continue
		}
		check("L2", s.timer[c])
		check("L2m", s.silent[c] || s.at[h] == pausing)
	}
	check("W1", !s.overtook)
	check("W2", !s.jumped)
	for p := range m.all() {
		if s.crashed && m.client(p) == 1 || m.takesBack(&s, p) || !m.Punctual {
			continue
		}
		held := s.write == uint8(p)+1 || s.read&(1<<p) != 0
		check("G1", !held || s.waits(p) || s.at[p] == releasing || s.anyOn(uint8(p)+1))
		check("G3", s.note[p] == 0 || s.waits(p))
	}
	return bad
}

// takesBack reports whether a number is being released in the background.
func (m *Notes) takesBack(s *NotesState, p int) bool {
	reads := s.at[p] == having && s.on[p] == uint8(p)+1 && s.write == 0
	return s.back&(1<<p) != 0 && !(m.Mutation == backWaits && reads)
}

func (s *NotesState) anyOn(number uint8) bool {
	for _, n := range s.on {
		if n == number {
			return true
		}
	}
	return false
}

// mayEnter reports whether the store would admit a party, even if its attempt were late.
func (m *Notes) mayEnter(s *NotesState, p int) bool {
	if m.writes(p) {
		return s.write == 0 && s.read == 0
	}
	return s.write == 0 && !s.bars(p, s.last)
}

// bars reports whether a note keeps out a reader with the given arrival number.
func (s *NotesState) bars(p int, came uint8) bool {
	for q, since := range s.note {
		if q != p && since != 0 && since < came {
			return true
		}
	}
	return false
}

// pending reports whether an event other than a timer will make the head of a client's queue try.
func (m *Notes) pending(s *NotesState, c int) bool {
	if s.fresh[c] || s.woken[c] || s.message[c] {
		return true
	}
	for p := range m.all() {
		if m.client(p) == c && (s.at[p] == releasing || s.at[p] == released) {
			return true
		}
	}
	return false
}

// Done reports whether all calls have ended and the store is empty.
func (m *Notes) Done(s NotesState) bool {
	for _, at := range s.at {
		if at != outside && at != finished {
			return false
		}
	}
	return s.write == 0 && s.read == 0 && s.note == [maxNoted]uint8{} && s.late == 0 && s.back == 0
}

type notesEmitter func(NotesState, string, ...any)

// Next emits the successors of s.
func (m *Notes) Next(s NotesState, calm bool, emit func(NotesState, string, ...any)) {
	do := func(t NotesState, format string, args ...any) {
		m.tidy(&t)
		emit(t, format, args...)
	}
	for p := range m.all() {
		m.background(s, p, calm, do)
		if !s.crashed || m.client(p) == 0 {
			m.step(s, p, calm, do)
		}
	}
	for c := range 2 {
		m.messages(s, c, calm, do)
		if s.shared[c] != 0 {
			t := s
			t.shared[c] = 0
			do(t, "the read of client %c is too old to be joined", 'A'+c)
		}
	}
	if !calm && m.Crashes > 0 && !s.crashed {
		m.crash(s, do)
	}
}

// tidy clears irrelevant data.
func (m *Notes) tidy(s *NotesState) {
	for c := range 2 {
		if m.head(s, c) < 0 {
			s.fresh[c], s.woken[c], s.message[c], s.timer[c], s.silent[c], s.kept[c] = false, false,
				false, false, false, false
		}
	}
	for p := range m.all() {
		for q := range m.all() {
			if !s.waits(q) {
				s.behind[p] &^= 1 << q
			}
		}
		if !s.waits(p) {
			s.behind[p] = 0
		}
		if s.at[p] == finished && !s.anyOn(uint8(p)+1) {
			s.asked &^= 1 << p
			s.unsure &^= 1 << p
		}
	}
}

// publish sends a message to both clients.
func (m *Notes) publish(s *NotesState) { s.message = [2]bool{true, true} }

// messages emits the possible fates of a message from the store: it arrives, or it gets lost.
func (m *Notes) messages(s NotesState, c int, calm bool, do notesEmitter) {
	if !s.message[c] {
		return
	}
	s.message[c] = false
	t := s
	t.woken[c] = s.woken[c] || !(s.kept[c] && m.Mutation == barredDeaf)
	do(t, "client %c gets the message", 'A'+c)
	if !calm && s.losses < m.Losses {
		s.losses++
		s.silent[c] = true
		do(s, "the message to client %c gets lost", 'A'+c)
	}
}

// background emits the events that no waiter causes: releases in the background, late attempts, and
// the expiry of holds and notes.
func (m *Notes) background(s NotesState, p int, calm bool, do notesEmitter) {
	bit := uint8(1) << p
	name := m.name(p)
	if s.late&bit != 0 {
		m.attempts(s, p, func(t NotesState, in bool, when string) {
			t.late &^= bit
			do(t, "store: LATE attempt of %s%s: %s (now %s)", name, when, inOrHeld(in), m.has(&t))
		})
		t := s
		t.late &^= bit
		do(t, "network loses the attempt of %s", name)
	}
	if m.takesBack(&s, p) {
		t := s
		m.giveBack(&t, p)
		if s.late&bit == 0 || m.Mutation == noteTakenBackOnce || !m.Punctual {
			t := t
			t.back &^= bit
			do(t, "background takes back what %s may have (now %s)", name, m.has(&t))
		}
		if s.late&bit != 0 {
			do(t, "background takes back what %s may have, not for the last time (now %s)", name,
				m.has(&t))
		}
		if m.Mutation == noteTakenBackOnce && !calm {
			t := s
			t.back &^= bit
			do(t, "network loses the take-back of %s", name)
		}
	}
	if s.note[p] != 0 &&
		(!s.waits(p) || s.at[p] == pausing || s.crashed && m.client(p) == 1 ||
			m.Mutation == placeTooShort && s.at[p] == asleep) {
		t := s
		t.note[p] = 0
		t.silent = [2]bool{true, true}
		if !s.waits(p) || s.at[p] == pausing {
			for q := range t.behind {
				t.behind[q] &^= bit
			}
		}
		do(t, "store: the note of %s runs out", name)
	}
	ghost := !m.Punctual && !s.waits(p) && s.at[p] != releasing && s.back&bit == 0 &&
		!s.anyOn(uint8(p)+1)
	if (s.crashed && m.client(p) == 1 || ghost) && (s.write == uint8(p)+1 || s.read&bit != 0) {
		t := s
		m.free(&t, p)
		t.silent = [2]bool{true, true}
		do(t, "store: the lease of %s runs out (now %s)", name, m.has(&t))
	}
}

// free deletes a number's hold in the store.
func (m *Notes) free(s *NotesState, p int) {
	if s.write == uint8(p)+1 {
		s.write = 0
	}
	s.read &^= 1 << p
}

// giveBack releases a number in the store. The store deletes the number's note and hold, but keeps
// a read that a party still uses.
func (m *Notes) giveBack(s *NotesState, p int) {
	before := *s
	reads := s.read & (1 << p)
	m.free(s, p)
	if s.anyOn(uint8(p) + 1) {
		s.read |= reads
	}
	switch gone := s.note[p] != 0; {
	case gone && m.Mutation != givesUpQuietly, s.write != before.write,
		s.read == 0 && before.read != 0:
		m.publish(s)
	}
	s.note[p] = 0
}

// attempts emits the possible results of an attempt, which may be carried out at once or late.
func (m *Notes) attempts(s NotesState, p int, emit func(t NotesState, in bool, when string)) {
	in, t := m.attempt(s, p, s.came[p])
	emit(t, in, "")
	if s.came[p] < s.last {
		in, t := m.attempt(s, p, s.last)
		emit(t, in, " has taken its time")
	}
}

// attempt carries out an attempt in the store. The parameter came is the arrival number that the
// store assumes.
func (m *Notes) attempt(s NotesState, p int, came uint8) (bool, NotesState) {
	number := uint8(p) + 1
	bit := uint8(1) << p
	if !m.writes(p) {
		switch {
		case s.read&bit != 0:
			return true, s
		case s.write != 0 || s.bars(p, came) && m.Mutation != neverBarred:
			return false, s
		}
		s.read |= bit
		for q := range m.all() {
			s.overtook = s.overtook || s.behind[p]&(1<<q) != 0 && m.client(q) != m.client(p)
		}
		return true, s
	}
	switch {
	case s.write == number:
		return true, s
	case s.write == 0 && s.read == 0:
		s.write = number
		if m.Mutation != entersKeepingNote {
			s.note[p] = 0
		}
		return true, s
	case s.note[p] == 0 || came < s.note[p] || m.Mutation == refreshesYounger:
		s.note[p] = came
	}
	return false, s
}

func inOrHeld(in bool) string {
	if in {
		return "acquired"
	}
	return "held, or kept out by a note"
}

// has describes the store's data.
func (m *Notes) has(s *NotesState) string {
	text := ""
	if s.write != 0 {
		text = m.name(int(s.write)-1) + " writes; "
	}
	for p := range m.all() {
		if s.read&(1<<p) != 0 {
			text += m.name(p) + " reads; "
		}
	}
	for p := range m.all() {
		if s.note[p] != 0 {
			text += fmt.Sprintf("note of %s, as one who came %d.; ", m.name(p), s.note[p])
		}
	}
	if text == "" {
		return "free"
	}
	return text[:len(text)-2]
}

// crash makes client B crash.
func (m *Notes) crash(s NotesState, do notesEmitter) {
	s.crashed = true
	for p := range m.all() {
		if m.client(p) == 1 {
			if s.at[p] == asking {
				s.late |= 1 << p
			}
			s.at[p], s.on[p] = finished, 0
			s.back &^= 1 << p
		}
	}
	s.shared[1] = 0
	do(s, "client B crashes")
}

// step emits the next events of a party.
func (m *Notes) step(s NotesState, p int, calm bool, do notesEmitter) {
	name, c := m.name(p), m.client(p)
	t := s
	switch s.at[p] {
	case outside:
		if !calm &&
			(p == 0 || m.client(p-1) != c || m.kind(p-1) != m.kind(p) || s.at[p-1] != outside) {
			m.come(s, p, do)
		}
	case asleep, pausing:
		m.sleep(s, p, do)
	case asking:
		m.ask(s, p, calm, do)
	case refused:
		t.at[p] = asleep
		t.timer[c] = !(s.kept[c] && m.Mutation == noNoteTimer)
		do(t, "%s gets its answer: held, or kept out; sleeps", name)
	case having, readingToo:
		m.leave(s, p, calm, do)
	case releasing:
		m.release(s, p, calm, do)
	case released:
		t.at[p] = finished
		t.woken[c] = true
		do(t, "%s gets the answer to its release", name)
	}
	if !calm && s.waits(p) {
		m.cancel(s, p, do)
	}
}

// come begins the call of a party.
func (m *Notes) come(s NotesState, p int, do notesEmitter) {
	c := m.client(p)
	s.last++
	s.came[p] = s.last
	writer := false // a writer waits in this client
	for q := range m.all() {
		if m.writes(q) && s.waits(q) && (s.note[q] != 0 || m.client(q) == c) {
			s.behind[p] |= 1 << q
			writer = writer || m.client(q) == c
		}
	}
	if n := s.shared[c]; !m.writes(p) && n != 0 && (!writer || m.Mutation == joinsAhead) {
		s.jumped = s.jumped || writer
		s.at[p], s.on[p] = having, n
		do(s, "%s comes, joins", m.name(p))
		return
	}
	if m.once(p) {
		s.at[p] = asking
		do(s, "%s comes, tries once", m.name(p))
		return
	}
	s.at[p] = asleep
	if m.head(&s, c) == p {
		s.fresh[c], s.woken[c], s.timer[c] = true, false, false
	}
	do(s, "%s comes, queues", m.name(p))
}

// sleep emits the next events of a waiting party. Only the head of a queue has any: its timer
// fires, or it tries again.
func (m *Notes) sleep(s NotesState, p int, do notesEmitter) {
	c := m.client(p)
	if m.head(&s, c) != p {
		return
	}
	if s.timer[c] {
		t := s
		t.timer[c], t.fresh[c] = false, true
		do(t, "%s's timer fires", m.name(p))
	}
	if s.fresh[c] || s.woken[c] {
		t := s
		t.fresh[c], t.woken[c], t.silent[c], t.timer[c], t.kept[c] = false, false, false, false,
			false
		t.at[p] = asking
		t.asked |= 1 << p
		do(t, "%s tries", m.name(p))
	}
}

// ask emits the possible outcomes of an attempt.
func (m *Notes) ask(s NotesState, p int, calm bool, do notesEmitter) {
	m.attempts(s, p, func(t NotesState, in bool, when string) {
		if m.once(p) && !in {
			t.at[p] = finished
			do(t, "%s: attempt%s: %s, goes (now %s)", m.name(p), when, inOrHeld(in), m.has(&t))
			return
		}
		t.at[p] = refused
		t.kept[m.client(p)] = !m.writes(p) && s.write == 0 &&
			(m.Mutation == barredDeaf || m.Mutation == noNoteTimer)
		if in {
			m.enter(&t, p, uint8(p)+1)
		}
		do(t, "%s: attempt%s: %s (now %s)", m.name(p), when, inOrHeld(in), m.has(&t))
	})
	if !calm && s.unknowns < m.Unknowns && s.late&(1<<p) == 0 && !m.once(p) {
		s.unknowns++
		s.late |= 1 << p
		s.unsure |= 1 << p
		s.at[p], s.timer[m.client(p)] = pausing, true
		do(s, "%s: attempt without answer; pauses", m.name(p))
	}
}

// enter records that a party now holds the lock. A reader also admits the readers that queue behind
// it, up to the first writer.
func (m *Notes) enter(s *NotesState, p int, number uint8) {
	c := m.client(p)
	head := m.head(s, c)
	s.at[p], s.on[p] = having, number
	if !m.writes(p) {
		s.shared[c] = number
		m.admit(s, c, number)
	}
	if m.head(s, c) != head {
		m.next(s, c)
	}
}

// admit lets the readers at the front of a queue, up to the first writer, join a claim. It skips a
// reader whose own attempt is under way.
func (m *Notes) admit(s *NotesState, c int, number uint8) {
	first := uint8(maxNoted + 1)
	for q := range m.all() {
		if m.client(q) == c && s.waits(q) && m.writes(q) &&
			!(m.Mutation == grantsAheadOfTrying && (s.at[q] == asking || s.at[q] == refused)) {
			first = min(first, s.came[q])
		}
	}
	for q := range m.all() {
		if m.client(q) != c || m.writes(q) || s.at[q] != asleep && s.at[q] != pausing {
			continue
		}
		if s.came[q] < first || m.Mutation == grantsAhead {
			for w := range m.all() {
				s.jumped = s.jumped || m.client(w) == c && m.writes(w) && s.waits(w) &&
					s.came[w] < s.came[q]
			}
			s.at[q], s.on[q] = having, number
			if s.unsure&(1<<q) != 0 {
				s.back |= 1 << q
			}
		}
	}
}

// next makes the head of a queue try, if the queue isn't empty.
func (m *Notes) next(s *NotesState, c int) {
	s.fresh[c] = m.head(s, c) >= 0
	s.timer[c], s.kept[c] = false, false
}

// heir returns the waiter to which a write is handed over: the first waiting writer, even if
// readers wait ahead of it. It returns -1 if there is none, or if that writer's attempt is under
// way.
func (m *Notes) heir(s *NotesState, c int) int {
	first := -1
	for p := range m.all() {
		if m.client(p) == c && m.writes(p) && s.waits(p) &&
			(first < 0 || s.came[p] < s.came[first]) {
			first = p
		}
	}
	if first >= 0 && (s.at[first] == asking || s.at[first] == refused) {
		return -1
	}
	return first
}

// leave emits the possible ways in which a party releases its hold.
func (m *Notes) leave(s NotesState, p int, calm bool, do notesEmitter) {
	name, c, number := m.name(p), m.client(p), s.on[p]
	t := s
	if s.at[p] == readingToo {
		t.at[p], t.write = having, 0
		m.drained(&t, int(number)-1)
		if m.Mutation != downgradesQuietly {
			m.publish(&t)
		}
		do(t, "%s unlocks its write and reads on", name)
		return
	}
	if m.kind(p) == 'D' && s.write == number && !calm && number == uint8(p)+1 {
		t.at[p] = readingToo
		t.read |= 1 << p
		do(t, "%s reads, too", name)
	}
	t = s
	t.on[p] = 0
	writing := m.writes(p) && s.write == number
	if !writing && t.anyOn(number) {
		t.at[p] = finished
		do(t, "%s leaves a read that others are on", name)
		return
	}
	if h := m.heir(&s, c); writing && h >= 0 && m.HandOver && s.unsure&(1<<(number-1)) == 0 {
		t := t
		if s.asked&(1<<h) != 0 && (m.Mutation != handedKeepingNote || t.unsure&(1<<h) != 0) {
			t.back |= 1 << h
		}
		t.at[p] = finished
		m.enter(&t, h, number)
		do(t, "%s hands over to %s", name, m.name(h))
	}
	if number == t.shared[c] {
		t.shared[c] = 0
	}
	t.at[p], t.on[p] = releasing, number
	do(t, "%s unlocks, sends release", name)
}

// drained records that a number was released in the store. If a request of that number might still
// be carried out, another release follows in the background.
func (m *Notes) drained(s *NotesState, number int) {
	if s.unsure&(1<<number) != 0 {
		s.back |= 1 << number
	}
}

// release emits the possible outcomes of a release.
func (m *Notes) release(s NotesState, p int, calm bool, do notesEmitter) {
	number := int(s.on[p]) - 1
	s.on[p] = 0
	t := s
	t.at[p] = released
	before := t
	m.free(&t, number)
	t.note[number] = 0
	quiet := m.Mutation == lastReaderQuiet && before.write == 0
	if (t.write != before.write || t.read == 0) && !quiet {
		m.publish(&t)
	}
	m.drained(&t, number)
	do(t, "store: the release of %s is carried out (now %s)", m.name(p), m.has(&t))
	if !calm && s.unknowns < m.Unknowns {
		s.unknowns++
		s.at[p] = finished
		s.back |= 1 << number
		do(s, "%s's release has no answer and goes on in the background", m.name(p))
	}
}

// cancel emits the cancellation of a waiting call. If a writer sent an attempt, its note is
// released in the background.
func (m *Notes) cancel(s NotesState, p int, do notesEmitter) {
	c, bit := m.client(p), uint8(1)<<p
	head := m.head(&s, c) == p
	if s.at[p] == asking {
		s.late |= bit
		s.unsure |= bit
	}
	noted := m.writes(p) && s.asked&bit != 0 && m.Mutation != givesUpLeavingNote
	if noted || s.unsure&bit != 0 {
		s.back |= bit
	}
	s.at[p] = finished
	if head {
		m.next(&s, c)
	}
	do(s, "%s is cancelled", m.name(p))
}

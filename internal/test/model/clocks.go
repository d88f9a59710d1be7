package main

// Clocks is the model of how a client comes to know until when it has a lock that a store gave it, if that says only by its own
// clock when that was. It looks, and remembers when it sent that, and what the store's clock showed when
// it was carried out; a grant carries what the clock showed then. The store's clock may be stepped, and the store replaced by another whose clock
// shows something else, which breaks the connections. The fields are the bounds.
//
// Time is absolute: it begins at 0, and the store's clock is right at first. What is stepped while the store has granted something ends that early, or late,
// whatever anybody thinks: so it isn't.
type Clocks struct {
	Short    int8 // for how long the store grants the lock
	End      int8 // of time
	Delay    int8 // how long a message takes at the most
	Look     int8 // and how long a look
	Steps    [2]int8
	Failover bool // the clock is stepped by a failover
	Stepped  bool // the clock may be stepped while the grant lasts
	Mutation mutation
}

// What has become of the grant.
const (
	notGranted uint8 = iota
	onItsWay
	believed
	refusedGrant
)

// ClocksState is a state.
type ClocksState struct {
	now, clock int8
	stepped    bool

	sent, read   int8 // the last look that was answered: by whose clock
	looked       bool
	asked        int8 // when the look that is under way was sent
	shown        int8 // what it shows
	asking, done bool

	grant uint8
	at    int8 // by the store's clock
	told  int8 // since when the message is under way
	until int8 // of the client
}

// Init is a grant that is yet to come.
func (m *Clocks) Init() ClocksState { return ClocksState{} }

// Bad says whether the client believes that it has what is over.
func (m *Clocks) Bad(s ClocksState) []string {
	if s.grant == believed && s.now < s.until && s.clock >= s.at+m.Short {
		return []string{"S1"}
	}
	return nil
}

// Done says that time is over.
func (m *Clocks) Done(s ClocksState) bool { return s.now == m.End }

type clocksEmitter func(ClocksState, string, ...any)

// Next emits the successors.
func (m *Clocks) Next(s ClocksState, calm bool, do func(ClocksState, string, ...any)) {
	overdue := s.grant == onItsWay && s.now-s.told >= m.Delay || s.asking && s.now-s.asked >= m.Look
	if s.now < m.End && !overdue {
		t := s
		t.now++
		t.clock++
		do(t, "a tick: it is %d, the store's clock shows %d", t.now, t.clock)
	}
	m.look(s, do)
	m.message(s, do)
	if !calm {
		m.step(s, do)
	}
}

// look emits what becomes of a look.
func (m *Clocks) look(s ClocksState, do clocksEmitter) {
	t := s
	switch {
	case !s.asking:
		t.asking, t.done, t.asked = true, false, s.now
		do(t, "A looks, at %d", s.now)
	case !s.done:
		t.done, t.shown = true, s.clock
		do(t, "store: the look is carried out, the clock shows %d", s.clock)
	default:
		t.asking, t.done = false, false
		t.looked, t.sent, t.read = true, s.asked, s.shown
		if m.Mutation == lookFromAnswer {
			t.sent = s.now
		}
		t.asked, t.shown = 0, 0
		do(t, "A's look is answered, at %d", s.now)
	}
}

// message emits the grant, and what becomes of its message.
func (m *Clocks) message(s ClocksState, do clocksEmitter) {
	switch s.grant {
	case notGranted:
		s.grant, s.at, s.told = onItsWay, s.clock, s.now
		do(s, "store: grants the lock, at %d by its clock", s.clock)
	case onItsWay:
		t := s
		t.grant = refusedGrant
		if since, ok := m.since(&s); ok {
			t.grant, t.until = believed, since+m.Short
			if m.Mutation != clockUnbounded {
				t.until = min(t.until, s.now+m.Short)
			}
		}
		do(t, "A hears of the grant, and believes it until %d", t.until)
	}
}

// since returns when the store granted the lock, by A's clock, or that it can't say.
func (m *Clocks) since(s *ClocksState) (at int8, ok bool) {
	passed := s.at - s.read
	switch {
	case m.Mutation == sinceReceipt:
		return s.now, true
	case !s.looked:
		return 0, false
	case passed > s.now-s.sent && m.Mutation != stepsUnseen && m.Mutation != clockUnbounded:
		return 0, false
	}
	return s.sent + passed, true
}

// step emits that the clock is stepped, or the store replaced.
func (m *Clocks) step(s ClocksState, do clocksEmitter) {
	if s.stepped || s.grant != notGranted && !m.Stepped {
		return
	}
	for _, by := range m.Steps {
		if by == 0 {
			continue
		}
		t := s
		t.stepped = true
		t.clock += by
		if !m.Failover {
			do(t, "the store's clock is stepped by %d", by)
			continue
		}
		t.asking, t.done, t.asked, t.shown = false, false, 0, 0
		if m.Mutation != looksOutliveBreaks {
			t.looked, t.sent, t.read = false, 0, 0
		}
		do(t, "failover to a store whose clock differs by %d, all connections break", by)
	}
}

package main

// Clocks is the model of how a client converts a time on the store's clock to a time on its own
// clock. The store grants the lock, and sends a message with the time of the grant by the store's
// clock. To relate the two clocks, the client queries the store's clock, and remembers when it sent
// the query. The store's clock can be stepped. In a failover, another store with a different clock
// replaces the store, and all connections break. The fields of Clocks limit the exploration.
//
// Time is absolute. It begins at 0, and the store's clock is correct then. Unless Stepped is set,
// the clock isn't stepped during a grant, because such a step would end the grant early or late,
// whatever the client does.
type Clocks struct {
	Short    int8 // how long the store grants the lock
	End      int8 // when the exploration ends
	Delay    int8 // the longest time that a message takes
	Look     int8 // the longest time that a query takes
	Steps    [2]int8
	Failover bool // a failover steps the clock
	Stepped  bool // the clock can be stepped while the grant lasts
	Mutation mutation
}

// The states of the grant.
const (
	notGranted uint8 = iota
	onItsWay
	believed
	refusedGrant
)

// ClocksState is a state of the model.
type ClocksState struct {
	now, clock int8
	stepped    bool

	// when the last answered query was sent, and the store's clock in its reply
	sent, read   int8
	looked       bool
	asked        int8 // when the pending query was sent
	shown        int8 // the store's clock, as read for the pending query
	asking, done bool

	grant uint8
	at    int8 // the time of the grant, by the store's clock
	told  int8 // when the store sent the message about the grant
	until int8 // the client's deadline
}

// Init returns the state before the grant.
func (m *Clocks) Init() ClocksState { return ClocksState{} }

// Bad reports whether the client relies on a grant that has expired.
func (m *Clocks) Bad(s ClocksState) []string {
	if s.grant == believed && s.now < s.until && s.clock >= s.at+m.Short {
		return []string{"S1"}
	}
	return nil
}

// Done reports whether time has ended.
func (m *Clocks) Done(s ClocksState) bool { return s.now == m.End }

type clocksEmitter func(ClocksState, string, ...any)

// Next emits the successors of s.
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

// look emits the events by which the client queries the store's clock.
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

// message emits the grant of the lock, and the arrival of the message about the grant.
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

// since returns the time of the grant by the client's clock. It returns false if the client can't
// know that time.
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

// step emits a step of the store's clock, or the replacement of the store.
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

package main

// Waits is the model of waiting: the queue of client A for one name, its subscription, and the ways
// in which the key gets free. Holds are simple here; model Holds has them in full. The fields are
// its bounds.
type Waits struct {
	Waiters  int
	Breaks   uint8 // of the subscription's connection
	Others   uint8 // acquisitions by another client
	Unknowns uint8 // steps without an answer
	HandOver bool
	Turns    bool  // who has released lets up to two releases of others pass
	Forces   uint8 // times that a client sends ForceUnlock
	Polls    bool  // the store doesn't notify
	Mutation mutation
}

const maxWaiters = 3

// Where a waiter is.
const (
	outside   uint8 = iota
	asleep          // in the queue, until it is at the head and there is a reason to try
	pausing         // the same, after an attempt without an answer
	asking          // its attempt is on its way
	refused         // … was answered "held", which it doesn't know yet
	granted         // was handed the hold, and hasn't noticed yet
	having          // has the lock
	releasing       // its release is on its way, because there was nobody to hand over to
	ending          // … because the time of the chain was over
	released        // its release was carried out, which it doesn't know yet
	ended           // the same, at the end of a chain
	finished
)

// Who has the key.
const (
	free    uint8 = iota
	other         // another client
	crashed       // another client that is no more
	ours          // one of our waiters
	ghost         // nobody: an attempt or a release of ours without an answer, to be taken back
)

// The subscription.
const (
	noSubscription uint8 = iota
	asked                // SUBSCRIBE is on its way
	standing             // it stands in the server, which we don't know yet
	confirmed            // we know
	broken               // the connection broke
	endingIt             // UNSUBSCRIBE is on its way
)

// WaitsState is a state.
type WaitsState struct {
	key       uint8
	told      bool // the key got free by a release, of which the store tells
	sub       uint8
	restored  bool // the subscription is being restored after a break
	messages  uint8
	answer    bool              // a take-back freed the key, which we don't know yet
	queue     [maxWaiters]uint8 // waiter + 1, head first
	fresh     bool              // the head has not tried since it is the head, or its timer fired
	woken     bool              // something happened since the head's last attempt was sent
	soon      bool              // the head tries within 5 ms, unless it is woken before
	skip      uint8             // messages that are to pass before one wakes
	sitting   bool              // soon is for that: nor does a subscription that stands wake
	at        [maxWaiters]uint8
	timer     [maxWaiters]bool
	struck    [maxWaiters]bool // the store let go of what the waiter has
	lateTries uint8            // attempts that were given up and may still be carried out
	breaks    uint8
	others    uint8
	unknowns  uint8
	forces    uint8
}

// Init is a key that another client has.
func (m *Waits) Init() WaitsState { return WaitsState{key: other, others: 1} }

func (s *WaitsState) head() int { return int(s.queue[0]) - 1 }

// Bad checks L2, that someone who waits for a free key will look at it; L2m, that after a release
// he needs no timer for that but the one of 5 ms, and that of a pause after an attempt failed; and G2, that where the key is ours somebody here
// has it.
func (m *Waits) Bad(s WaitsState) []string {
	var bad []string
	if s.key == ours && !s.anyAt(granted, having, releasing, ending, asking) {
		bad = append(bad, "G2")
	}
	if s.key != free || s.head() < 0 || m.pending(&s) {
		return bad
	}
	if !s.timer[s.head()] {
		bad = append(bad, "L2")
	}
	if s.told && !m.Polls && s.at[s.head()] != pausing {
		bad = append(bad, "L2m")
	}
	return bad
}

func (s *WaitsState) anyAt(places ...uint8) bool {
	for _, at := range s.at {
		for _, p := range places {
			if at == p {
				return true
			}
		}
	}
	return false
}

// pending says whether anything but a timer will let the head try.
func (m *Waits) pending(s *WaitsState) bool {
	if s.fresh || s.woken || s.soon || s.answer || s.anyAt(asking, refused, granted, having, releasing, ending, released, ended) {
		return true
	}
	switch s.sub {
	case asked, standing:
		return m.Mutation != noSecondTry && m.Mutation != wokenWhenAsked && !s.restored ||
			s.restored && m.Mutation != noWakeOnReconnect && m.Mutation != wokenBeforeReconnect
	case confirmed:
		return s.messages > 0
	case broken:
		return m.Mutation != noWakeOnReconnect
	}
	return false
}

// Done says that the key is free and nobody is left.
func (m *Waits) Done(s WaitsState) bool {
	for _, at := range s.at {
		if at != outside && at != finished {
			return false
		}
	}
	return s.key == free && s.lateTries == 0
}

func (s *WaitsState) wake() { s.woken = s.head() >= 0 }

// message is one from the store. While a release of ours is under way it means that or is followed by
// the answer to it; and where others are to come first it may mean them.
func (m *Waits) message(s *WaitsState) {
	switch {
	case m.Turns && s.anyAt(releasing, ending, released, ended):
		s.soon = s.soon || s.head() >= 0
	case s.skip > 0 && s.head() >= 0:
		s.skip--
		if m.Mutation != passesForGood {
			s.soon, s.sitting = true, true
		}
	default:
		s.wake()
	}
}

// turns lets the head sit out so many releases of others.
func (m *Waits) turns(s WaitsState, emit func(WaitsState, string, ...any), n int) {
	if !m.Turns || s.head() < 0 {
		return
	}
	for skip := uint8(0); skip <= 2; skip++ {
		t := s
		m.subscribe(&t)
		t.skip, t.sitting, t.soon = skip, true, m.Mutation != noShortTimer
		emit(t, "waiter %d gets its answer: freed, others wait; lets %d releases pass", n, skip)
	}
}

// publish is the message of a release.
func (s *WaitsState) publish() {
	s.key, s.told = free, true
	if (s.sub == standing || s.sub == confirmed) && s.messages < 2 {
		s.messages++
	}
}

// enqueue puts a waiter at the end of the queue.
func (m *Waits) enqueue(s *WaitsState, w int) {
	for i := range s.queue {
		if s.queue[i] == 0 {
			s.queue[i] = uint8(w) + 1
			break
		}
	}
	s.at[w] = asleep
	if s.head() == w {
		m.newHead(s)
	}
}

// newHead lets the head try or, if it may be handed the lock, wait for that a little.
func (m *Waits) newHead(s *WaitsState) {
	s.fresh, s.soon = m.Mutation != noPassOn, false
	if m.HandOver && s.anyAt(granted, having) {
		s.fresh, s.soon = false, m.Mutation != noShortTimer
	}
}

// yield lets the head wait for the message of our own release, as others do, or for 5 ms. One that is
// just trying tries again: its answer may be from before the release.
func (m *Waits) yield(s *WaitsState) {
	if s.head() < 0 {
		return
	}
	if at := s.at[s.head()]; at == asking || at == refused {
		s.wake()
		return
	}
	m.subscribe(s)
	s.soon = m.Mutation != noShortTimer
}

// dequeue takes a waiter out of the queue; the next one takes its place, and what woke it.
func (m *Waits) dequeue(s *WaitsState, w int) {
	i := 0
	for int(s.queue[i]) != w+1 {
		i++
	}
	copy(s.queue[i:], s.queue[i+1:])
	s.queue[maxWaiters-1] = 0
	s.timer[w] = false
	if s.head() < 0 {
		m.dissolve(s)
	} else if i == 0 {
		m.newHead(s)
	}
}

// dissolve ends an empty queue, and with it the subscription.
func (m *Waits) dissolve(s *WaitsState) {
	s.fresh, s.woken, s.soon, s.sitting, s.messages, s.restored = false, false, false, false, 0, false
	switch s.sub {
	case asked, standing, confirmed:
		s.sub = endingIt
	case broken:
		s.sub = noSubscription
	}
}

// Next emits the successors.
func (m *Waits) Next(s WaitsState, calm bool, emit func(WaitsState, string, ...any)) {
	m.others(s, calm, emit)
	m.background(s, emit)
	m.subscription(s, calm, emit)
	for w := range m.Waiters {
		m.step(s, w, calm, emit)
		if !calm {
			m.cancel(s, w, emit)
		}
	}
}

// others emits what other clients do.
func (m *Waits) others(s WaitsState, calm bool, emit func(WaitsState, string, ...any)) {
	t := s
	switch s.key {
	case free:
		if !calm && s.others < m.Others {
			t.key, t.told = other, false
			t.others++
			emit(t, "B acquires")
		}
	case other:
		t.publish()
		emit(t, "B releases, store publishes")
		if !calm {
			t = s
			t.key = crashed
			emit(t, "B crashes with the lock")
		}
	case crashed:
		t.key, t.told = free, false
		emit(t, "store: the lease runs out, key free, no message")
	case ours:
		if !calm && s.forces < m.Forces {
			t.forces++
			t.publish()
			for w, at := range s.at {
				t.struck[w] = at == granted || at == having || at == releasing || at == ending
			}
			emit(t, "store: ForceUnlock is carried out, publishes")
		}
	}
}

// background emits what becomes of requests that nobody awaits, and of take-backs.
func (m *Waits) background(s WaitsState, emit func(WaitsState, string, ...any)) {
	if s.lateTries > 0 {
		t := s
		t.lateTries--
		if s.key == free {
			t.key, t.told = ghost, false
			emit(t, "store: LATE attempt acquires, nobody is there")
		} else {
			emit(t, "store: LATE attempt is answered held, or lost")
		}
	}
	if s.key == ghost {
		t := s
		t.publish()
		t.answer = true
		emit(t, "store: take-back is carried out, publishes")
	}
	if s.answer {
		t := s
		t.answer = false
		t.wake()
		emit(t, "A's background gets the answer to its take-back")
	}
}

// subscription emits what becomes of the subscription: one connection, in order.
func (m *Waits) subscription(s WaitsState, calm bool, emit func(WaitsState, string, ...any)) {
	t := s
	switch s.sub {
	case asked:
		t.sub = standing
		emit(t, "store: subscription stands")
	case standing:
		t.sub, t.restored = confirmed, false
		silent := m.Mutation == noSecondTry || m.Mutation == wokenWhenAsked
		if s.restored {
			silent = m.Mutation == noWakeOnReconnect || m.Mutation == wokenBeforeReconnect
		}
		if !silent && !s.sitting {
			t.wake()
		}
		emit(t, "A learns that the subscription stands")
	case broken:
		t.sub = asked
		if m.Mutation == wokenBeforeReconnect {
			t.wake()
		}
		emit(t, "A's connection is back, SUBSCRIBE sent")
	case endingIt:
		t.sub = noSubscription
		emit(t, "store: unsubscribed")
	}
	if s.sub == confirmed && s.messages > 0 {
		t := s
		t.messages--
		if h := s.head(); h >= 0 && (s.at[h] <= pausing || m.Mutation != messageWakesSleepersOnly) {
			m.message(&t)
		}
		emit(t, "A gets the message")
	}
	if !calm && s.breaks < m.Breaks && (s.sub == asked || s.sub == standing || s.sub == confirmed) {
		t := s
		t.sub, t.restored, t.messages = broken, true, 0
		t.breaks++
		emit(t, "A's subscription breaks (%d messages lost)", s.messages)
	}
}

// step emits what a waiter does.
func (m *Waits) step(s WaitsState, w int, calm bool, emit func(WaitsState, string, ...any)) {
	t := s
	n := w + 1
	switch s.at[w] {
	case outside:
		if !calm && (w == 0 || s.at[w-1] != outside) { // waiters are alike: they come in order
			m.enqueue(&t, w)
			emit(t, "waiter %d comes", n)
		}
	case asleep, pausing:
		m.sleep(s, w, emit)
	case asking:
		m.ask(s, w, calm, emit)
	case refused:
		m.held(&t, w)
		emit(t, "waiter %d gets answer: held; sleeps", n)
	case granted:
		t.at[w] = having
		emit(t, "waiter %d notices that it has the lock", n)
		if !calm {
			m.release(s, w, "was cancelled as it was handed the lock", emit)
		}
	case having:
		m.release(s, w, "unlocks", emit)
	case releasing, ending:
		if s.struck[w] {
			t.at[w], t.struck[w] = finished, false
			t.wake() // nobody here has it any more
			emit(t, "waiter %d gets its answer: not held", n)
			return
		}
		t.publish()
		t.at[w] += released - releasing
		emit(t, "store: waiter %d's release is carried out, publishes", n)
		if !calm && s.unknowns < m.Unknowns {
			t = s
			t.unknowns++
			t.at[w], t.key = finished, ghost
			emit(t, "waiter %d's release has no answer and goes on in the background", n)
		}
	case released, ended:
		t.at[w] = finished
		m.turns(t, emit, n)
		if s.at[w] == released {
			t.wake()
		} else {
			m.yield(&t)
		}
		emit(t, "waiter %d gets its answer: freed", n)
	}
}

// sleep emits what lets a waiter in the queue go on.
func (m *Waits) sleep(s WaitsState, w int, emit func(WaitsState, string, ...any)) {
	if s.timer[w] {
		t := s
		t.timer[w] = false
		t.fresh = t.fresh || s.head() == w
		emit(t, "waiter %d's timer fires", w+1)
	}
	if s.head() != w {
		return
	}
	if s.soon {
		t := s
		t.soon, t.sitting, t.fresh = false, false, true
		emit(t, "waiter %d has waited 5 ms for the message", w+1)
	}
	if s.woken && !s.fresh && m.HandOver && s.anyAt(granted, having) {
		t := s
		t.woken, t.soon = false, m.Mutation != noShortTimer
		emit(t, "waiter %d expects to be handed the lock, and lets a message pass", w+1)
	}
	if s.fresh || s.woken {
		t := s
		t.fresh, t.soon, t.sitting = false, false, false
		t.woken = t.woken && m.Mutation == clearedAfterwards
		t.at[w] = asking
		emit(t, "waiter %d tries", w+1)
	}
}

// ask emits what becomes of an attempt.
func (m *Waits) ask(s WaitsState, w int, calm bool, emit func(WaitsState, string, ...any)) {
	t := s
	if s.key == free {
		t.key, t.told, t.skip = ours, false, 0
		t.at[w] = having
		m.dequeue(&t, w)
		emit(t, "waiter %d: attempt acquires the lock", w+1)
	} else {
		t.at[w] = refused
		emit(t, "waiter %d: attempt is carried out: held", w+1)
	}
	if !calm && s.unknowns < m.Unknowns {
		t = s
		t.unknowns++
		t.lateTries++
		t.at[w], t.timer[w] = pausing, m.Mutation != noTimer
		emit(t, "waiter %d: attempt without answer; pauses", w+1)
	}
}

// held lets the head wait, with a timer and a subscription.
func (m *Waits) held(s *WaitsState, w int) {
	s.at[w], s.timer[w] = asleep, m.Mutation != noTimer
	if m.Mutation == clearedAfterwards {
		s.woken = false
	}
	s.soon = s.sitting // there is one timer, for whichever is first: the answer may be from before our release
	m.subscribe(s)
}

// subscribe asks for a subscription unless there is one.
func (m *Waits) subscribe(s *WaitsState) {
	if m.Polls || s.sub != noSubscription && s.sub != endingIt || s.sub == endingIt && m.Mutation == reusesEnding {
		return
	}
	s.sub = asked
	if m.Mutation == wokenWhenAsked {
		s.wake()
	}
}

// release emits how a hold may end: handed over, released, or lost.
func (m *Waits) release(s WaitsState, w int, why string, emit func(WaitsState, string, ...any)) {
	h := s.head()
	if m.Mutation == grantLeft && s.at[w] == granted {
		s.at[w], s.struck[w] = finished, false
		emit(s, "waiter %d %s, and leaves it", w+1, why)
		return
	}
	if m.HandOver && h >= 0 {
		t := s
		t.at[w] = finished
		if s.at[h] == asking {
			t.lateTries++
		}
		t.at[h] = granted
		t.struck[w], t.struck[h] = false, s.struck[w]
		m.dequeue(&t, h)
		emit(t, "waiter %d %s, hands over to waiter %d", w+1, why, h+1)
		t = s
		t.at[w] = ending
		emit(t, "waiter %d %s, the chain's time is over: sends release", w+1, why)
	}
	t := s
	t.at[w] = releasing
	emit(t, "waiter %d %s, sends release", w+1, why)
	t = s
	t.at[w], t.struck[w] = finished, false
	if !s.struck[w] {
		t.key, t.told = free, false
	}
	t.wake()
	emit(t, "waiter %d loses its hold, which has run out", w+1)
}

// cancel emits the end of a waiter's call.
func (m *Waits) cancel(s WaitsState, w int, emit func(WaitsState, string, ...any)) {
	switch s.at[w] {
	case asking:
		s.lateTries++
	case asleep, pausing, refused:
	default:
		return
	}
	s.at[w] = finished
	m.dequeue(&s, w)
	emit(s, "waiter %d is cancelled", w+1)
}

package main

// Waits is the model of waiting. It covers client A's queue for one name, its subscription, and the
// ways in which the key becomes free. Holds are simple here, because the Holds model covers them in
// full. The fields of Waits limit the exploration.
type Waits struct {
	Waiters  int
	Breaks   uint8 // breaks of the subscription's connection
	Others   uint8 // acquisitions by other clients
	Unknowns uint8 // unanswered steps
	HandOver bool
	Turns    bool  // after a release, a client first waits for up to two releases by others
	Forces   uint8 // how many times a client sends ForceUnlock
	Polls    bool  // the store sends no messages
	Mutation mutation
}

const maxWaiters = 3

// The states of a waiter.
const (
	outside   uint8 = iota
	asleep          // in the queue; the head tries again when an event or a timer wakes it
	pausing         // like asleep, but after an unanswered attempt
	asking          // its attempt is under way
	refused         // its attempt was refused, but the reply is still under way
	granted         // it was handed the hold, but hasn't noticed it yet
	having          // it holds the lock
	releasing       // its release is under way, because no call waited for a hand-over
	ending          // its release is under way, because the hand-over time had run out
	released        // the release was carried out, but the reply is still under way
	ended           // like released, but after ending
	finished
)

// The owners of the key.
const (
	free    uint8 = iota
	other         // another client
	crashed       // another client that has crashed
	ours          // a waiter of client A
	ghost         // an unanswered request of A, whose hold A will release in the background
)

// The states of the subscription.
const (
	noSubscription uint8 = iota
	asked                // SUBSCRIBE is under way
	standing             // the server has it, but A doesn't know that yet
	confirmed            // A knows that the server has it
	broken               // the connection broke
	endingIt             // UNSUBSCRIBE is under way
)

// WaitsState is a state of the model.
type WaitsState struct {
	key       uint8
	told      bool // the key was freed by a release, and the store sends a message about it
	sub       uint8
	restored  bool // the subscription is being restored after a break
	messages  uint8
	answer    bool              // a background release freed the key, and its reply is under way
	queue     [maxWaiters]uint8 // waiter + 1, head first
	fresh     bool              // the head hasn't tried since it became the head or its timer fired
	woken     bool              // an event came since the head's last attempt was sent
	soon      bool              // the head tries within 5 ms, unless it is woken earlier
	skip      uint8             // how many messages to ignore before the head is woken
	sitting   bool              // the head lets others go first; a new subscription doesn't wake it
	at        [maxWaiters]uint8
	timer     [maxWaiters]bool
	struck    [maxWaiters]bool // the store ended the waiter's hold
	lateTries uint8            // abandoned attempts that may still be carried out
	breaks    uint8
	others    uint8
	unknowns  uint8
	forces    uint8
}

// Init returns the initial state, in which another client holds the key.
func (m *Waits) Init() WaitsState { return WaitsState{key: other, others: 1} }

func (s *WaitsState) head() int { return int(s.queue[0]) - 1 }

// Bad checks three rules. L2: the head of the queue will try if the key is free. L2m: if the key
// was freed by a release, the head will try even if only the 5 ms timer fires, unless it
// pauses after an unanswered attempt. G2: if the key is A's, a waiter of A holds it.
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

// pending reports whether an event other than a timer will make the head try.
func (m *Waits) pending(s *WaitsState) bool {
	if s.fresh || s.woken || s.soon || s.answer ||
		s.anyAt(asking, refused, granted, having, releasing, ending, released, ended) {
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

// Done reports whether the key is free and no call is left.
func (m *Waits) Done(s WaitsState) bool {
	for _, at := range s.at {
		if at != outside && at != finished {
			return false
		}
	}
	return s.key == free && s.lateTries == 0
}

func (s *WaitsState) wake() { s.woken = s.head() >= 0 }

// message handles a message from the store. While a release by A is under way, the message may be
// about that release. In that case, it only starts the 5 ms timer, because the reply to the release
// is still to come. While the head lets other clients go first, each message counts as a release by
// one of them.
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

// turns emits the states in which the head waits for up to two releases by other clients.
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

// publish sends the message of a release.
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

// newHead makes the head try. If a waiter of A holds the key and could hand it over, the head waits
// for up to 5 ms first.
func (m *Waits) newHead(s *WaitsState) {
	s.fresh, s.soon = m.Mutation != noPassOn, false
	if m.HandOver && s.anyAt(granted, having) {
		s.fresh, s.soon = false, m.Mutation != noShortTimer
	}
}

// yield makes the head wait until the message about A's own release arrives, but for 5 ms at most.
// Other clients also wait for that message. If an attempt of the head is under way, its answer may
// predate the release, so the head tries again as soon as it has the answer.
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

// dequeue removes a waiter from the queue. The next waiter inherits its place and its wake-ups.
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

// dissolve ends the subscription of a queue that has become empty, and clears the queue's data.
func (m *Waits) dissolve(s *WaitsState) {
	s.fresh, s.woken, s.soon, s.sitting, s.messages, s.restored = false, false, false, false, 0,
		false
	switch s.sub {
	case asked, standing, confirmed:
		s.sub = endingIt
	case broken:
		s.sub = noSubscription
	}
}

// Next emits the successors of s.
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

// others emits the events of other clients.
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

// background emits background releases, and the outcomes of requests whose replies nobody awaits.
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

// subscription emits the events of the subscription. They stay in order, because they come over a
// single connection.
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

// step emits the next events of a waiter.
func (m *Waits) step(s WaitsState, w int, calm bool, emit func(WaitsState, string, ...any)) {
	t := s
	n := w + 1
	switch s.at[w] {
	case outside:
		if !calm && (w == 0 || s.at[w-1] != outside) { // waiters are interchangeable
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
			t.wake() // A no longer has the key
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

// sleep emits the events of a waiter in the queue: a timer fires, or the waiter tries again.
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

// ask emits the possible outcomes of an attempt.
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

// held makes the head wait, with a timer and a subscription.
func (m *Waits) held(s *WaitsState, w int) {
	s.at[w], s.timer[w] = asleep, m.Mutation != noTimer
	if m.Mutation == clearedAfterwards {
		s.woken = false
	}
	// The head has a single timer, for the earliest of the times at which it would try. While it
	// lets others go first, it still tries again within 5 ms, since this answer may predate A's
	// release.
	s.soon = s.sitting
	m.subscribe(s)
}

// subscribe requests a subscription unless there is one.
func (m *Waits) subscribe(s *WaitsState) {
	if m.Polls || s.sub != noSubscription && s.sub != endingIt ||
		s.sub == endingIt && m.Mutation == reusesEnding {
		return
	}
	s.sub = asked
	if m.Mutation == wokenWhenAsked {
		s.wake()
	}
}

// release emits the possible ways in which a hold ends: it is handed over, released, or lost.
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

// cancel emits the cancellation of a waiter's call.
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

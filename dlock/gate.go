package dlock

// A gate lets one through at a time, first come first served. It is part of a Locker, of which there
// may be many, and so has no channel while nobody waits. All of it is guarded by Client.mu.
type gate struct {
	first, last *entrant
	waiting     int32 // how many wait, or are about to, for a lock that is renewed
	shut        bool
	left        bool // the Locker's hold is that of whoever comes through next
}

// An entrant waits at a gate.
type entrant struct {
	prev, next *entrant
	in         bool          // it is through
	signal     chan struct{} // gets one value when it is
}

// slip goes through if the gate is open, and shuts it.
func (g *gate) slip() bool {
	if g.shut {
		return false
	}
	g.shut = true
	return true
}

// open lets the next through, or leaves the gate open.
func (g *gate) open() {
	e := g.first
	if e == nil {
		g.shut = false
		return
	}
	g.remove(e)
	e.in = true
	e.signal <- struct{}{}
}

func (g *gate) add(e *entrant) {
	e.prev, e.next = g.last, nil
	if g.last != nil {
		g.last.next = e
	} else {
		g.first = e
	}
	g.last = e
}

func (g *gate) remove(e *entrant) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		g.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		g.last = e.prev
	}
	e.prev, e.next = nil, nil
}

// comeToGate goes through the gate or returns who is to wait for that.
func (l *Locker) comeToGate() *entrant {
	c := l.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.gate.slip() {
		return nil
	}
	e, ok := c.entrants.Get().(*entrant)
	if !ok {
		e = &entrant{signal: make(chan struct{}, 1)}
	}
	e.in = false
	l.gate.add(e)
	return e
}

// goFromGate says whether one who waited is gone without having come through.
func (l *Locker) goFromGate(e *entrant) bool {
	c := l.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.in {
		<-e.signal
	} else {
		l.gate.remove(e)
	}
	return !e.in
}

// openGate lets the next plain call through.
func (l *Locker) openGate() {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.gate.open()
}

// slip goes through the gate if it is open.
func (l *Locker) slip() bool {
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	return l.gate.slip()
}

package dlock

import "runtime"

// If a program drops its last reference to a Hold, or to a Locker that holds a lock, no code can
// release that lock any more. Some programs do so on purpose, to hold a lock until they end, as
// with client.Locker("leader").Lock(). So the client keeps renewing the lock. But usually it is a
// mistake, so the client logs it once.

// watchVariable makes the client notice when a Locker is dropped.
func (l *Locker) watchVariable() {
	if !l.plain.watched.Swap(true) {
		runtime.AddCleanup(l, l.client.droppedVariable, l.plain)
	}
}

// droppedVariable logs that a Locker was dropped while it was locked by plain calls.
func (c *Client) droppedVariable(v *variable) {
	s := c.lock()
	defer c.unlock()
	if v.hold != nil {
		v.hold.reportDropped(s, "a Locker was dropped while it is locked")
	}
}

// droppedHold logs that a Hold and its context were dropped without a release.
func (c *Client) droppedHold(h *hold) {
	s := c.lock()
	defer c.unlock()
	h.reportDropped(s, "a Hold was dropped without a Release")
}

// reportDropped logs a dropped hold. It doesn't read the clock, since cleanups run outside the
// bubbles of testing/synctest, and a bubble has its own time.
func (h *hold) reportDropped(s *state, what string) {
	if s.closed || h.state != live {
		return
	}
	cl := h.claim
	s.warn(what+": nobody can give the lock back", "name", cl.object.name, "kind", cl.kind.String(),
		"holder", cl.owner, "fixed", !cl.Renewed())
}

package dlock

import "runtime"

// If a program drops its last reference to a Hold, or to a Locker that holds a lock, no code can
// release that lock any more. Some programs do so on purpose, to hold a lock until they end, as
// with client.Locker("leader").Lock(). So the client keeps renewing the lock. But usually it is a
// mistake, so the client logs it once.

// watchVariable makes the client notice when a Locker is dropped.
func (c *Client) watchVariable(l *Locker) {
	if !l.plain.watched.Swap(true) {
		runtime.AddCleanup(l, c.droppedVariable, l.plain)
	}
}

// droppedVariable logs that a Locker was dropped while its plain calls held the lock.
func (c *Client) droppedVariable(v *variable) {
	c.mu.Lock()
	defer c.unlock()
	if v.hold != nil {
		c.reportDroppedLocked(v.hold, "a Locker was dropped while it is locked")
	}
}

// droppedHold logs that a Hold and its context were dropped without a release.
func (c *Client) droppedHold(h *hold) {
	c.mu.Lock()
	defer c.unlock()
	c.reportDroppedLocked(h, "a Hold was dropped without a Release")
}

// reportDroppedLocked logs a dropped hold. It doesn't read the clock, since cleanups run outside
// the bubbles of testing/synctest, which have their own time.
func (c *Client) reportDroppedLocked(h *hold, what string) {
	if c.closed || h.state != live {
		return
	}
	cl := h.claim
	c.warnLocked(what+": nobody can give the lock back", "name", cl.object.name, "kind",
		cl.kind.String(), "holder", cl.owner, "fixed", !cl.Renewed())
}

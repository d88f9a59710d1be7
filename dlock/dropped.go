package dlock

import "runtime"

// A lock whose Hold or Locker nobody refers to any more can't be given back. It goes on being renewed, since a
// program may mean to have it until it ends (client.Locker("leader").Lock() and nothing else), and is logged once,
// since more often somebody has forgotten it.

// watchVariable has a Locker found that is dropped.
func (c *Client) watchVariable(l *Locker) {
	if !l.plain.watched.Swap(true) {
		runtime.AddCleanup(l, c.droppedVariable, l.plain)
	}
}

// droppedVariable logs that the plain calls of a Locker which is gone have the lock.
func (c *Client) droppedVariable(v *variable) {
	c.mu.Lock()
	defer c.unlock()
	if v.hold != nil {
		c.reportDroppedLocked(v.hold, "a Locker was dropped while it is locked")
	}
}

// droppedHold logs that a Hold and its context are gone, and what they were for isn't given back.
func (c *Client) droppedHold(h *hold) {
	c.mu.Lock()
	defer c.unlock()
	c.reportDroppedLocked(h, "a Hold was dropped without a Release")
}

// reportDroppedLocked doesn't look at the clock: cleanups run outside the bubbles of testing/synctest, in
// another time.
func (c *Client) reportDroppedLocked(h *hold, what string) {
	if c.closed || h.state != live {
		return
	}
	cl := h.claim
	c.warnLocked(what+": nobody can give the lock back", "name", cl.object.name, "kind", cl.kind.String(), "holder", cl.owner, "fixed", !cl.Renewed())
}

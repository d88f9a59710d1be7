package faults

import "io"

// A bytesLink is the state of a connection on which the client waits for each answer before it
// sends the next request.
type bytesLink struct {
	*link
	caught  *trap // the trap whose request hasn't been answered yet
	holding *trap // collects all data that arrives, until the trap is open
}

func newBytes(l *link) (requests, replies parser) {
	b := &bytesLink{link: l}
	return bytesRequests{b, chunks{l.client}}, bytesReplies{b, chunks{l.server}}
}

// chunks reads whatever bytes arrive together.
type chunks struct{ r io.Reader }

func (c chunks) read() ([]byte, error) {
	unit := make([]byte, 32<<10)
	n, err := c.r.Read(unit)
	if n > 0 {
		err = nil // the next Read returns the error
	}
	return unit[:n], err
}

type bytesRequests struct {
	*bytesLink
	chunks
}

func (b bytesRequests) pass(unit []byte) {
	if b.holding != nil && !b.holding.open {
		b.holding.pass(unit)
		return
	}
	t := b.spring(Request{Bytes: unit}, b.caught == nil)
	if t == nil {
		b.toServer.pass(unit)
		return
	}
	switch t.blow {
	case LoseRequest:
		b.toServer.lose(t)
	case HoldRequest:
		// if b.caught is set, this is a later part of its request, and gets no reply of its own
		t.silent = b.caught != nil
		if b.caught == nil {
			b.caught = t
		}
		b.holding = t
		b.toServer.hold(t, unit)
	default:
		b.caught = t
		b.toServer.pass(unit)
	}
}

type bytesReplies struct {
	*bytesLink
	chunks
}

func (b bytesReplies) pass(unit []byte) {
	t := b.caught
	b.caught = nil
	switch {
	case t != nil && t.blow == LoseReply:
		b.toClient.lose(t)
		return
	case t != nil:
		t.answered()
	}
	b.toClient.pass(unit)
}

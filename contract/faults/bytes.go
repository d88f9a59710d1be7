package faults

import "io"

// A bytesLink is what is known of a connection on which each request is answered before the next is
// sent.
type bytesLink struct {
	*link
	caught  *trap // whose request is not answered
	holding *trap // until it is open all that comes is passed to it
}

func newBytes(l *link) (requests, replies parser) {
	b := &bytesLink{link: l}
	return bytesRequests{b, chunks{l.client}}, bytesReplies{b, chunks{l.server}}
}

// chunks reads what comes at once.
type chunks struct{ r io.Reader }

func (c chunks) read() ([]byte, error) {
	unit := make([]byte, 32<<10)
	n, err := c.r.Read(unit)
	if n > 0 {
		err = nil // it comes again
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
		t.silent = b.caught != nil // the reply that comes next is that to the beginning of this request
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

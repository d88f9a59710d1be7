package valkeybackend

import (
	"errors"
	"net"
	"strings"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// replyError wraps an error reply in an error of the matching kind.
func replyError(reply *valkey.ValkeyError) error {
	return redisson.ServerError(replyText(reply), reply)
}

// replyText returns an error reply as the server sent it. valkey-go removes the code ERR, but no
// other code. So if the text doesn't begin with a word in capitals, the code was ERR.
func replyText(reply *valkey.ValkeyError) string {
	text := reply.Error()
	if code, _, _ := strings.Cut(text, " "); code != strings.ToUpper(code) {
		return "ERR " + text
	}
	return text
}

// clientError returns the kind of an error that isn't a server's reply. If the error occurred
// before the command was written, nothing was sent. Otherwise, including after the client was
// closed, it is unknown whether the command was sent.
func clientError(err error) backend.ErrorKind {
	switch {
	case dialError(err) != nil, errors.Is(err, valkey.ErrNoSlot):
		return backend.Retry
	case errors.Is(err, valkey.ErrNoCache):
		// The client can't connect at all with its options.
		return backend.Refused
	default:
		return backend.Unknown
	}
}

// dialError returns err if it is an error of valkey-go's dialer, or else nil. A dial error that is
// wrapped in another error doesn't come from that dialer. For example, an open connection may need
// new credentials whose source can't be reached. valkey-go then closes the connection, and even
// commands that were already sent on it fail with such a wrapped error.
func dialError(err error) *net.OpError {
	if op, ok := err.(*net.OpError); ok && op.Op == "dial" {
		return op
	}
	return nil
}

// unsent returns the kind of an error that valkey-go returned for a command that was certainly not
// sent.
func unsent(err error) backend.ErrorKind {
	// reply is the server's reply to a command that sets up a connection.
	reply, ok := errors.AsType[*valkey.ValkeyError](err)
	switch {
	case errors.Is(err, valkey.ErrClosing), errors.Is(err, valkey.ErrNoCache):
		return backend.Refused
	case ok && backend.KindOf(replyError(reply)) == backend.Refused:
		return backend.Refused
	default:
		return backend.Retry
	}
}

// asUnknown makes an error's kind Unknown. It is for a step that was carried out in part.
func asUnknown(err error) error {
	return &backend.Error{Kind: backend.Unknown, Err: err}
}

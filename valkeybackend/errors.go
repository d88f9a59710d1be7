package valkeybackend

import (
	"errors"
	"net"
	"strings"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// replyError adds the kind to an error reply.
func replyError(reply *valkey.ValkeyError) error {
	return redisson.ServerError(replyText(reply), reply)
}

// replyText returns an error reply as the server sent it. valkey-go removes the code ERR, but no
// other code. So a text that doesn't begin with a word in capitals had that code.
func replyText(reply *valkey.ValkeyError) string {
	text := reply.Error()
	if code, _, _ := strings.Cut(text, " "); code != strings.ToUpper(code) {
		return "ERR " + text
	}
	return text
}

// clientError returns the kind of an error that isn't a server's reply. If the error occurred
// before the command was written, nothing was sent. Otherwise it is unknown whether the command was
// sent. That includes the error of a closed client.
func clientError(err error) backend.ErrorKind {
	switch {
	case dialError(err) != nil, errors.Is(err, valkey.ErrNoSlot):
		return backend.Retry
	case errors.Is(err, valkey.ErrNoCache):
		// no connection can be set up with the client's options
		return backend.Refused
	default:
		return backend.Unknown
	}
}

// dialError returns err if it is an error of valkey-go's dialer, or else nil. A wrapped dial error
// comes from elsewhere, for example from a source of credentials that can't be reached when an open
// connection needs new ones. valkey-go then closes the connection, and commands that were sent on
// it also get this error.
func dialError(err error) *net.OpError {
	if op, ok := err.(*net.OpError); ok && op.Op == "dial" {
		return op
	}
	return nil
}

// unsent returns the kind of a client's error for a command that was certainly not sent.
func unsent(err error) backend.ErrorKind {
	reply, ok := errors.AsType[*valkey.ValkeyError](err) // the reply while a connection was set up
	switch {
	case errors.Is(err, valkey.ErrClosing), errors.Is(err, valkey.ErrNoCache):
		return backend.Refused
	case ok && backend.KindOf(replyError(reply)) == backend.Refused:
		return backend.Refused
	default:
		return backend.Retry
	}
}

// asUnknown returns the error with kind Unknown. It is for a step that was carried out in part.
func asUnknown(err error) error {
	return &backend.Error{Kind: backend.Unknown, Err: err}
}

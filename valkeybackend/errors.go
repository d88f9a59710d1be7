package valkeybackend

import (
	"errors"
	"net"
	"strings"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

// replyError gives an error reply its kind.
func replyError(reply *valkey.ValkeyError) error {
	return redisson.ServerError(replyText(reply), reply)
}

// replyText is an error reply as the server has sent it: valkey-go takes the code of those away
// that have no better one than ERR. What is left begins with a word of a sentence, not a code.
func replyText(reply *valkey.ValkeyError) string {
	text := reply.Error()
	if code, _, _ := strings.Cut(text, " "); code != strings.ToUpper(code) {
		return "ERR " + text
	}
	return text
}

// clientError is the kind of an error that is no reply of the server's. What valkey-go met before it
// wrote the command is harmless. Of everything else nobody knows, also where a client was closed: the
// command may have been sent before.
func clientError(err error) backend.ErrorKind {
	switch {
	case dialError(err) != nil, errors.Is(err, valkey.ErrNoSlot):
		return backend.Retry
	case errors.Is(err, valkey.ErrNoCache): // a connection cannot be set up as the client's options ask
		return backend.Refused
	default:
		return backend.Unknown
	}
}

// dialError returns an error of valkey-go's dialer, or nil. One that is wrapped is somebody else's: that of
// a source of credentials, say, which could not be reached when those of a connection had to be
// renewed. That connection is closed then, and what was sent over it has this error, too.
func dialError(err error) *net.OpError {
	if op, ok := err.(*net.OpError); ok && op.Op == "dial" {
		return op
	}
	return nil
}

// unsent is the kind of a client's error because of which a command was certainly not sent.
func unsent(err error) backend.ErrorKind {
	reply, ok := errors.AsType[*valkey.ValkeyError](err) // to what sets up a connection
	switch {
	case errors.Is(err, valkey.ErrClosing), errors.Is(err, valkey.ErrNoCache):
		return backend.Refused
	case ok && backend.KindOf(replyError(reply)) == backend.Refused:
		return backend.Refused
	default:
		return backend.Retry
	}
}

// asUnknown returns the error with kind Unknown, for a step that was carried out in part.
func asUnknown(err error) error {
	return &backend.Error{Kind: backend.Unknown, Err: err}
}

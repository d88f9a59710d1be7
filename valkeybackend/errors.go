package valkeybackend

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/valkey-io/valkey-go"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

var errKind = &backend.Error{Kind: backend.Refused, Err: errors.New("valkey: no such kind of lock")}

// withKind gives an error of valkey-go its kind. If it is about a connection that was closed,
// clientClosed is asked whether the client was, too.
func withKind(err error, clientClosed func() bool) error {
	if reply, ok := errors.AsType[*valkey.ValkeyError](err); ok {
		return redisson.ServerError(replyText(reply), err)
	}
	return &backend.Error{Kind: clientError(err, clientClosed), Err: err}
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
// wrote the command is harmless; of everything else nobody knows.
func clientError(err error, clientClosed func() bool) backend.ErrorKind {
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial",
		errors.Is(err, valkey.ErrNoSlot):
		return backend.Retry
	case errors.Is(err, valkey.ErrNoCache): // a connection cannot be set up as the client's options ask
		return backend.Refused
	case errors.Is(err, valkey.ErrClosing) && clientClosed():
		return backend.Refused
	default:
		return backend.Unknown
	}
}

// isClosed says whether a client was closed for good. valkey-go reports with the same error that it
// has closed a single connection, say to a server that is no master any more, and then the commands
// on that connection may have been carried out.
func isClosed(ctx context.Context, client valkey.Client) bool {
	err := client.Do(ctx, client.B().Arbitrary("PING").Build()).NonValkeyError()
	return errors.Is(err, valkey.ErrClosing)
}

// asUnknown returns the error with kind Unknown, for a step that was carried out in part.
func asUnknown(err error) error {
	return &backend.Error{Kind: backend.Unknown, Err: err}
}

// ended returns the error of a context that has ended before anything was sent, or nil.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &backend.Error{Kind: backend.Retry, Err: err}
	}
	return nil
}

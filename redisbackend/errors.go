package redisbackend

import (
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/redisson"
)

var errNoReply = &backend.Error{Kind: backend.Unknown, Err: errors.New("redis: no reply")}

// withKind returns err as a [backend.Error]. If err isn't one yet, withKind determines its kind.
func withKind(err error) error {
	if kinded, ok := errors.AsType[*backend.Error](err); ok {
		return kinded
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		return redisson.ServerError(reply.Error(), err)
	}
	return &backend.Error{Kind: clientError(err), Err: err}
}

// isReply reports whether err is, or wraps, an error reply from a server.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// clientError returns the kind of an error that isn't a server's reply. If the error occurred
// before the command was written, nothing was sent. Otherwise it is unknown whether the command was
// carried out.
func clientError(err error) backend.ErrorKind {
	var op *net.OpError
	switch {
	case errors.Is(err, redis.ErrClosed):
		return backend.Refused
	case errors.As(err, &op) && op.Op == "dial",
		errors.Is(err, redis.ErrPoolTimeout),
		errors.Is(err, redis.ErrPoolExhausted):
		return backend.Retry
	default:
		return backend.Unknown
	}
}

// notSent returns err, which occurred before anything was sent, as a [backend.Error]. Its kind is
// Refused if withKind returns that kind, and Retry otherwise. notSent also replaces redis.Nil,
// which could be mistaken for the reply to the command.
func notSent(err error) error {
	if err == redis.Nil {
		err = fmt.Errorf("redis: no connection: %v", err)
	}
	if kinded := withKind(err); backend.KindOf(kinded) == backend.Refused {
		return kinded
	}
	return &backend.Error{Kind: backend.Retry, Err: err}
}

// asUnknown returns err as a [backend.Error] of kind Unknown. It is for a step that may have been
// carried out, at least in part.
func asUnknown(err error) error {
	return &backend.Error{Kind: backend.Unknown, Err: err}
}

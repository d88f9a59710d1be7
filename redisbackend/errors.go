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

// withKind gives an error of go-redis its kind, unless it has one.
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

// isReply says whether an error is, or wraps, a reply of a server's.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// clientError is the kind of an error that is no reply of the server's. What go-redis met before it
// wrote the command is harmless; of everything else nobody knows.
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

// notSent returns an error that came before anything was sent. A null among them was no answer to us,
// and is kept from those who would take it for one.
func notSent(err error) error {
	if err == redis.Nil {
		err = fmt.Errorf("redis: no connection: %v", err)
	}
	if kinded := withKind(err); backend.KindOf(kinded) == backend.Refused {
		return kinded
	}
	return &backend.Error{Kind: backend.Retry, Err: err}
}

// asUnknown returns the error with kind Unknown, whatever it says itself: for a step that was carried out
// in part, or may have been.
func asUnknown(err error) error {
	return &backend.Error{Kind: backend.Unknown, Err: err}
}

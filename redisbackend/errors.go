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

// isReply reports whether an error is, or wraps, a server's error reply.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}

// clientError returns the kind of an error that isn't a server's reply. After an error from before
// the write of the command, nothing was sent. After other errors, it is unknown whether the command
// was carried out.
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

// notSent gives a kind to an error from before anything was sent. It hides redis.Nil, which was not
// an answer to the command, but could be taken for one.
func notSent(err error) error {
	if err == redis.Nil {
		err = fmt.Errorf("redis: no connection: %v", err)
	}
	if kinded := withKind(err); backend.KindOf(kinded) == backend.Refused {
		return kinded
	}
	return &backend.Error{Kind: backend.Retry, Err: err}
}

// asUnknown gives an error the kind Unknown, even if it has another. It is for a step that may have
// been carried out, at least in part.
func asUnknown(err error) error {
	return &backend.Error{Kind: backend.Unknown, Err: err}
}

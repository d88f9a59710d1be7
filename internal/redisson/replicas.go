package redisson

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Replicas are those that an acquisition waits for: N within a time, or none if N is zero.
type Replicas struct {
	N       int
	Timeout time.Duration
}

// wait is what follows a write on the same connection.
func (r Replicas) wait() Command {
	return Command{Verb: "WAIT", Args: []string{strconv.Itoa(r.N), millis(r.Timeout)}}
}

// ErrNotReplicated is wrapped in the error of an acquisition that too few replicas have acknowledged.
var ErrNotReplicated = errors.New("the lock is not replicated")

// acknowledged reads the reply to WAIT. It returns nil, or an error that wraps [ErrNotReplicated].
func (r Replicas) acknowledged(reply Reply) error {
	if reply.Err != nil {
		return fmt.Errorf("%w: %w", ErrNotReplicated, reply.Err)
	}
	acks, ok := reply.Value.(int64)
	if !ok {
		return fmt.Errorf("%w: %w", ErrNotReplicated, unexpected("WAIT", reply.Value))
	}
	if acks < int64(r.N) {
		return fmt.Errorf("%w: %d of %d replicas have acknowledged it in time", ErrNotReplicated, acks, r.N)
	}
	return nil
}

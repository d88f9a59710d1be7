package redisson

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Replicas requires that N replicas acknowledge an acquisition within Timeout. If N is zero,
// acquisitions don't wait for replicas.
type Replicas struct {
	N       int
	Timeout time.Duration
}

// wait returns the command that waits until replicas acknowledge a write. It must follow the write
// on the same connection.
func (r Replicas) wait() Command {
	return Command{Verb: "WAIT", Args: []string{strconv.Itoa(r.N), millis(r.Timeout)}}
}

// ErrNotReplicated is wrapped by the error of an acquisition that too few replicas acknowledged.
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
		return fmt.Errorf("%w: %d of %d replicas have acknowledged it in time", ErrNotReplicated,
			acks, r.N)
	}
	return nil
}

package redisson

import (
	"errors"
	"fmt"
)

// ErrNotReplicated is wrapped in the error of an acquisition that too few replicas have acknowledged.
var ErrNotReplicated = errors.New("the lock is not replicated")

// CheckReplicas reads the reply to WAIT, or the error instead of it, where WAIT was sent for n replicas
// after an acquisition and on the same connection. It returns nil, or an error that wraps
// [ErrNotReplicated].
func CheckReplicas(n int, reply any, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotReplicated, err)
	}
	acks, ok := reply.(int64)
	if !ok {
		return fmt.Errorf("%w: %w", ErrNotReplicated, unexpected("WAIT", reply))
	}
	if acks < int64(n) {
		return fmt.Errorf("%w: %d of %d replicas have acknowledged it in time", ErrNotReplicated, acks, n)
	}
	return nil
}

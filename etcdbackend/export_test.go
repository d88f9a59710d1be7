package etcdbackend

import (
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// CheckEvery makes a session check a silent stream of watches more often than users need.
func CheckEvery(d time.Duration) Option {
	return func(o *options) { o.checkEvery = d }
}

// Remembered returns how many holds a session remembers.
func Remembered(s backend.Session) int { return s.(*session).holds.len() }

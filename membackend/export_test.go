package membackend

import (
	"time"
)

// Wipe loses all locks, as a server restarted without persistence does.
func (b *Backend) Wipe() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.locks)
	b.token = 0
}

// Size returns how many entries the tables have, and whether a timer is running.
func (b *Backend) Size() (locks, subs int, timer bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.locks), len(b.subs), b.due != time.Time{}
}

package gocronlock

// Known says of how many jobs a Locker remembers what it has locked.
func Known(l *Locker) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.last)
}

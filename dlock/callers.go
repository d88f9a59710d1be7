package dlock

import (
	"sync"

	"github.com/seed951563bd/distsync/internal/goroutine"
)

// callers assigns a number to each place in the program that acquires locks. A hold then stores
// only the number, and not the file and line.
type callers struct {
	mu    sync.Mutex
	sites map[string]site
	names []string
}

// A site is the number of a place that acquires locks, or 0 if the place isn't known.
type site uint32

// note returns the site of the current call.
func (c *callers) note() site {
	if c == nil {
		return 0
	}
	name := goroutine.Caller()
	if name == "" {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, known := c.sites[name]
	if !known {
		if c.sites == nil {
			c.sites = make(map[string]site)
		}
		c.names = append(c.names, name)
		s = site(len(c.names))
		c.sites[name] = s
	}
	return s
}

// at returns the file and line of a site, or "".
func (c *callers) at(s site) string {
	if c == nil || s == 0 {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[s-1]
}

package dlock

import (
	"sync"

	"github.com/seed951563bd/distsync/internal/goroutine"
)

// callers are the places in the program that lock. There are few, so that a number is enough for
// each hold to know its own.
type callers struct {
	mu    sync.Mutex
	sites map[string]site
	names []string
}

// A site is the number of such a place; 0 if it isn't known.
type site uint32

// note returns where the call comes from that is being made.
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

// at returns the name of a place, or nothing.
func (c *callers) at(s site) string {
	if c == nil || s == 0 {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[s-1]
}

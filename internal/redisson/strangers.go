package redisson

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// strangers are Redisson's among those who have a session's locks. A client of ours that has got a
// lock passes it on inside for a while, and so do others of ours; one of Redisson's has one turn at
// a time. So whoever passes locks on must know of them: see [backend.ReleaseResult]. A client that
// waits for a lock looks with an attempt who has it, now and then, in the same round trip.
type strangers struct {
	mu    sync.Mutex
	names map[string]acquaintance
	own   []string // the last owners of this client that don't tell whose they are
	next  int      // where the next of these comes
}

// An acquaintance is what is known of those who have a lock.
type acquaintance struct {
	refused time.Time // when somebody else had it
	looked  time.Time
	clients map[string]sighting // other than this one
}

// A sighting is when a client had a lock.
type sighting struct {
	at       time.Time
	stranger bool // it is one of Redisson's
}

const (
	// lookEvery is how often a client looks who has a lock that it is refused.
	lookEvery = 20 * time.Millisecond

	// refusalLasts is for how long an attempt counts as one of somebody who waits.
	refusalLasts = time.Second

	// strangersStay is for how long a client is reckoned with that had a lock.
	strangersStay = 5 * time.Second

	// mostAcquaintances is how many locks this is known of.
	mostAcquaintances = 256

	// mostOwn is how many owners of this client are known. One that has asked long ago, and still
	// has something, is taken for another client's: then this one lets more of the others come first.
	mostOwn = 256
)

// hashed asks who has a lock that is a hash, if these are few.
func hashed(name string) Command { return call(hashedScript, 1, name).byText() }

// permitted asks who has the first permits that are out.
func permitted(name string) Command { return call(permittedScript, 1, ids(name)).byText() }

var (
	hashedScript    = newScript(`return redis.call('hlen', KEYS[1]) < 10 and redis.call('hkeys', KEYS[1]) or {};`)
	permittedScript = newScript(`return redis.call('zrange', KEYS[1], 0, 9);`)
)

// redissonOwner is what Redisson calls an owner: a UUID and the number of a thread.
var redissonOwner = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+(:write)?$`)

// hashedHolder returns the client of an owner in a lock that is a hash, or "" if it is none.
func hashedHolder(owner string) (client string, stranger bool) {
	if owner == "mode" {
		return "", false
	}
	return clientOf(strings.TrimSuffix(owner, writerSuffix)), redissonOwner.MatchString(owner)
}

// permitHolder returns what stands for the owner of a permit, by its id or by itself: nobody knows of
// which client. Redisson's ids are random, and each may be anybody's.
func permitHolder(id string) (holder string, stranger bool) {
	if ours, _ := isOurs(id); ours || len(id) == holderLen {
		return id[:holderLen], false
	}
	return "Redisson", true
}

// due says whether an attempt is to look.
func (s *strangers) due(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, now := s.names[name], time.Now()
	if now.Sub(a.refused) > refusalLasts || now.Sub(a.looked) < lookEvery {
		return false
	}
	a.looked = now
	s.names[name] = a
	return true
}

// asks notes that an owner of this client asks for a lock.
func (s *strangers) asks(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.own); {
	case n > 0 && s.own[(s.next+n-1)%n] == owner:
		return // again
	case n < mostOwn:
		s.own = append(s.own, owner)
	default:
		s.own[s.next] = owner
		s.next = (s.next + 1) % mostOwn
	}
}

// refused notes that somebody else has a lock.
func (s *strangers) refused(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, known := s.names[name]
	if !known && len(s.names) >= mostAcquaintances {
		clear(s.names)
	}
	if s.names == nil {
		s.names = make(map[string]acquaintance)
	}
	a.refused = time.Now()
	s.names[name] = a
}

// saw reads who has a lock, as an owner was told.
func (s *strangers) saw(k *kind, name, asks string, r Reply) {
	owners, _ := r.Value.([]any)
	s.mu.Lock()
	defer s.mu.Unlock()
	a, known := s.names[name]
	if !known {
		return
	}
	now := time.Now()
	own, _ := k.holder(asks)
	maps.DeleteFunc(a.clients, func(_ string, c sighting) bool { return now.Sub(c.at) > strangersStay })
	for _, owner := range owners {
		text, _ := owner.(string)
		client, stranger := k.holder(text)
		if client == "" || client == own || slices.Contains(s.own, client) {
			continue
		}
		if a.clients == nil {
			a.clients = make(map[string]sighting)
		}
		a.clients[client] = sighting{now, stranger}
	}
	s.names[name] = a
}

// among returns how many of those who wait for a lock are Redisson's, as far as is known: all if
// nobody else had it lately.
func (s *strangers) among(waiting int, name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, fellows := 0, false
	for _, c := range s.names[name].clients {
		switch {
		case time.Since(c.at) > strangersStay:
		case c.stranger:
			n++
		default:
			fellows = true
		}
	}
	if n > 0 && !fellows {
		n = waiting
	}
	return min(waiting, n)
}

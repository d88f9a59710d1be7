package redisson

import (
	"regexp"
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
}

// An acquaintance is what is known of those who have a lock.
type acquaintance struct {
	refused time.Time // when somebody else had it
	looked  time.Time
	seen    time.Time // when it was one of Redisson's
	fellow  time.Time // when it was another client of ours
}

const (
	// lookEvery is how often a client looks who has a lock that it is refused.
	lookEvery = 20 * time.Millisecond

	// refusalLasts is for how long an attempt counts as one of somebody who waits.
	refusalLasts = time.Second

	// strangersStay is for how long one of Redisson's is reckoned with that had a lock.
	strangersStay = 5 * time.Second

	// mostAcquaintances is how many locks this is known of.
	mostAcquaintances = 256
)

// whoHas asks who has a lock, if these are few.
func whoHas(name string) Command { return call(whoHasScript, 1, name).byText() }

var whoHasScript = newScript(`return redis.call('hlen', KEYS[1]) < 10 and redis.call('hkeys', KEYS[1]) or {};`)

// redissonOwner is what Redisson calls an owner: a UUID and the number of a thread.
var redissonOwner = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+(:write)?$`)

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

// saw reads the reply to whoHas, which an owner has asked.
func (s *strangers) saw(name, asks string, r Reply) {
	owners, _ := r.Value.([]any)
	s.mu.Lock()
	defer s.mu.Unlock()
	a, known := s.names[name]
	if !known {
		return
	}
	for _, owner := range owners {
		text, ok := owner.(string)
		switch {
		case !ok || text == "mode":
		case redissonOwner.MatchString(text):
			a.seen = time.Now()
		case clientOf(strings.TrimSuffix(text, writerSuffix)) != clientOf(asks):
			a.fellow = time.Now()
		}
	}
	s.names[name] = a
}

// among returns how many of those who wait for a lock are Redisson's, as far as is known: none if
// none of them had it lately; all if nobody else had; or one.
func (s *strangers) among(waiting int, name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.names[name]
	switch {
	case time.Since(a.seen) > strangersStay:
		return 0
	case time.Since(a.fellow) > strangersStay:
		return waiting
	default:
		return min(waiting, 1)
	}
}

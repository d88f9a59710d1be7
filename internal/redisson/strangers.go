package redisson

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// strangers records the clients that held a session's locks recently, and whether each is a client
// of Redisson. During its turn, one of our clients can pass the lock from one of its calls to the
// next for a while, whereas a client of Redisson gets the lock only once per turn. To share the
// lock fairly, a client that hands locks over must therefore know how many of the waiting clients
// are Redisson's: see [backend.ReleaseResult]. A client that waits for a lock learns this by asking
// for the lock's holders from time to time, in the same round trip as an attempt to acquire.
type strangers struct {
	mu    sync.Mutex
	names map[string]acquaintance
	// own lists the most recent owners of this client. It is used only for kinds of lock whose
	// owners don't reveal their clients (see kind.untold).
	own []string
	// next is the index of the owner in own that will be replaced next.
	next int
}

// An acquaintance records the latest holders of a lock.
type acquaintance struct {
	refused time.Time // when the last attempt was refused
	looked  time.Time
	clients map[string]sighting // clients other than this one
}

// A sighting records when a client was last seen holding a lock.
type sighting struct {
	at       time.Time
	stranger bool // the client is one of Redisson's
}

const (
	// lookEvery is the minimum time between two requests for the holders of a lock.
	lookEvery = 20 * time.Millisecond

	// refusalLasts is how long this client counts as waiting for a lock after its last attempt to
	// acquire the lock was refused.
	refusalLasts = time.Second

	// strangersStay is how long a client is remembered after it was seen holding a lock.
	strangersStay = 5 * time.Second

	// mostAcquaintances is the maximum number of locks in strangers.names.
	mostAcquaintances = 256

	// mostOwn is the maximum number of this client's owners that are remembered. A forgotten owner
	// that still holds permits counts as an owner of another client. Then this client lets others
	// go first more often than necessary.
	mostOwn = 256
)

// hashed returns the command that lists the holders of a lock that is stored as a hash. The list is
// empty if the hash has ten fields or more.
func hashed(name string) Command { return call(hashedScript, 1, name).byText() }

// permitted returns the command that lists the ids of the ten acquired permits that expire first.
func permitted(name string) Command { return call(permittedScript, 1, ids(name)).byText() }

var (
	hashedScript = newScript(
		`return redis.call('hlen', KEYS[1]) < 10 and redis.call('hkeys', KEYS[1]) or {};`)
	permittedScript = newScript(`return redis.call('zrange', KEYS[1], 0, 9);`)
)

// redissonOwner matches Redisson's owner strings: a UUID and a thread number.
var redissonOwner = regexp.MustCompile(
	`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+(:write)?$`)

// hashedHolder returns the client that an owner belongs to, for the kinds of lock that are stored
// as a hash. It returns "" for a field that isn't an owner.
func hashedHolder(owner string) (client string, stranger bool) {
	if owner == "mode" {
		return "", false
	}
	return clientOf(strings.TrimSuffix(owner, writerSuffix)), redissonOwner.MatchString(owner)
}

// permitHolder returns a string that identifies the owner of a permit. The argument is the permit's
// id or the owner's [holder]. The string doesn't reveal the client. Redisson's ids are random, so
// all of Redisson's owners get the same string.
func permitHolder(id string) (holder string, stranger bool) {
	if ours, _ := isOurs(id); ours || len(id) == holderLen {
		return id[:holderLen], false
	}
	return "Redisson", true
}

// due reports whether an attempt should also ask for the holders of the lock.
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

// asks records that one of this client's owners is trying to acquire a lock.
func (s *strangers) asks(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.own); {
	case n > 0 && s.own[(s.next+n-1)%n] == owner:
		return // this owner was also recorded last
	case n < mostOwn:
		s.own = append(s.own, owner)
	default:
		s.own[s.next] = owner
		s.next = (s.next + 1) % mostOwn
	}
}

// refused records that an attempt to acquire a lock was refused.
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

// saw records the holders of a lock, as listed in the reply r. The request for them was sent
// together with an attempt to acquire the lock. The parameter asks is the owner that made that
// attempt.
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
	maps.DeleteFunc(a.clients, func(_ string, c sighting) bool {
		return now.Sub(c.at) > strangersStay
	})
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

// among estimates how many of the clients that wait for a lock are Redisson's. If all recent
// holders were Redisson's, among assumes that all waiting clients are, too.
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

package dlock

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"time"
)

// several is what is held of several locks together: the context for what is done meanwhile. Nothing of this package refers to it but its
// Hold, so that one that is dropped can be found.
type several struct {
	context.Context // ends with the caller's, with the first hold that is lost, and when they are given back
	*together
	names []identity // of each hold; the last is the innermost
	line  *lifeline
	end   context.CancelCauseFunc
	lost  chan struct{}
	watch runtime.Cleanup // that of a Hold: whether it is dropped
}

// inside returns the context for what is done while all locks are held.
func (t *together) inside(ctx context.Context) *several {
	s := &several{together: t, names: make([]identity, len(t.given)), lost: make(chan struct{})}
	outer := identityOf(ctx)
	for i, p := range t.given {
		s.names[i] = identity{party: p.h.party, client: p.locker.client, hold: p.h, outer: outer}
		outer = &s.names[i]
	}
	s.Context, s.end = withCancelCause(ctx)
	end, lost, once := s.end, s.lost, new(sync.Once)
	s.line = &lifeline{func(cause error) {
		if cause != ErrNotHeld { // somebody has given back more than he took
			once.Do(func() { close(lost) })
		}
		end(cause)
	}}
	for _, p := range t.given {
		p.locker.client.follow(p.h, s.line)
	}
	return s
}

// follow ends a context when a hold is over.
func (c *Client) follow(h *hold, line *lifeline) {
	c.mu.Lock()
	defer c.unlock()
	t := h.watchedLocked()
	if t.contexts == nil {
		t.contexts = make(map[*lifeline]struct{})
	}
	t.contexts[line] = struct{}{}
	if h.state != live {
		c.endContextsLocked(h, h.ended())
	}
}

// unfollow is for who has given the hold back.
func (c *Client) unfollow(h *hold, line *lifeline) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.watchers != nil {
		delete(h.watchers.contexts, line)
	}
}

// over ends the context, since what it is for is given back.
func (s *several) over() {
	s.watch.Stop()
	s.end(nil)
	for _, p := range s.given {
		p.locker.client.unfollow(p.h, s.line)
	}
}

// Err says whether the context is over. It looks at the clock, as that of a single hold does.
func (s *several) Err() error {
	if err := s.Context.Err(); err != nil {
		return err
	}
	for _, p := range s.given {
		if c := p.locker.client; c.now() >= p.h.claim.Until() {
			if err := c.lossOf(p.h); err != nil {
				s.line.cancel(err)
			}
		}
	}
	return s.Context.Err()
}

// Value returns what the caller's context does, and in whose name calls with this one are made.
func (s *several) Value(key any) any {
	if key == (identityKey{}) {
		return &s.names[len(s.names)-1]
	}
	return s.Context.Value(key)
}

// handle returns what a caller gets that has acquired several locks.
func (t *together) handle(ctx context.Context) *Hold {
	s := t.inside(ctx)
	s.watch = runtime.AddCleanup(s, droppedParts, t.given)
	return &Hold{stay: stay{ctx: s}}
}

// droppedParts logs that a Hold of several locks and its context are gone.
func droppedParts(parts []*part) {
	for _, p := range parts {
		p.locker.client.droppedHold(p.h)
	}
}

// run calls fn while the locks are held, and releases them.
func (t *together) run(ctx context.Context, fn func(context.Context) error) (err error) {
	s := t.inside(ctx)
	returned := false
	defer func() {
		s.over()
		releaseParts(withoutCancel(ctx), t.parts, false)
		for _, p := range t.parts {
			p.notHeldAgain()
			if p.err == nil && p.who.alone {
				p.locker.client.reportLeft(p.h, false)
			}
			if p.err != nil && !returned {
				p.locker.client.warn("unlock, after a panic", "name", p.locker.name, "err", p.error("unlock"))
			}
		}
		err = withUnlock(err, joined("unlock", t.given))
	}()
	err = fn(s)
	returned = true
	return err
}

// notHeldAgain is what releaseWithin does: if it was given back before, more was given back than taken.
func (p *part) notHeldAgain() {
	if p.err == errAgain {
		p.err = ErrNotHeld
	}
}

// several returns what a Hold has if that is several locks, or nil.
func (s *stay) several() *several {
	if s.hold != nil {
		return nil
	}
	return s.ctx.(*several)
}

// release gives all locks back.
func (s *several) release(ctx context.Context) error {
	s.over()
	releaseParts(ctx, s.parts, false)
	for _, p := range s.parts {
		p.notHeldAgain()
	}
	return joined("release", s.given)
}

// state returns how the first of the holds that is over has ended, or nil.
func (s *several) state(given bool) error {
	var first error
	for _, p := range s.given {
		err := p.locker.stateOf(p.h, given)
		if errors.Is(err, ErrLost) {
			return err
		}
		first = cmp.Or(first, err)
	}
	return first
}

// until returns until when all are surely held.
func (s *several) until() time.Time {
	first := s.given[0].until()
	for _, p := range s.given[1:] {
		if t := p.until(); t.Before(first) {
			first = t
		}
	}
	return first
}

func (p *part) until() time.Time { return p.locker.client.epoch.Add(p.h.claim.Until()) }

// token returns that of the last hold that has one.
func (s *several) token() (token uint64) {
	for _, p := range s.given {
		token = cmp.Or(p.h.token(), token)
	}
	return token
}

// each returns what a function says of each part, in one line.
func (s *several) each(say func(*part) string) string {
	words := make([]string, len(s.given))
	for i, p := range s.given {
		words[i] = say(p)
	}
	return strings.Join(words, ", ")
}

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

// several is the context of a hold of several locks. Within this package, only its Hold refers to
// it, so that a dropped Hold can be detected.
type several struct {
	context.Context // ends with the caller's context, a loss or the release
	*together
	names []identity // one per hold, with the innermost last
	line  *lifeline
	end   context.CancelCauseFunc
	lost  chan struct{}
	watch runtime.Cleanup // detects that the Hold was dropped
}

// inside returns the context for work that is done while all locks are held.
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
		if cause != ErrNotHeld { // a superfluous release isn't a loss
			once.Do(func() { close(lost) })
		}
		end(cause)
	}}
	for _, p := range t.given {
		p.h.follow(p.locker.client, s.line)
	}
	return s
}

// over ends the context. It is called before the locks are released.
func (s *several) over() {
	s.watch.Stop()
	s.end(nil)
	for _, p := range s.given {
		p.h.unfollow(p.locker.client, s.line)
	}
}

// Err returns the reason why the context has ended, or nil. It checks the clock, like the Err of a
// single hold's context.
func (s *several) Err() error {
	if err := s.Context.Err(); err != nil {
		return err
	}
	for _, p := range s.given {
		if c := p.locker.client; c.now() >= p.h.claim.Until() {
			if err := p.h.lossError(c); err != nil {
				s.line.cancel(err)
			}
		}
	}
	return s.Context.Err()
}

// Value returns the value in the caller's context. For the identity key, however, it returns the
// identity of the innermost hold, which links to the identities of the other holds. So a call that
// uses one of the locks with this context finds that lock's hold.
func (s *several) Value(key any) any {
	if key == (identityKey{}) {
		return &s.names[len(s.names)-1]
	}
	return s.Context.Value(key)
}

// handle returns the Hold for several acquired locks.
func (t *together) handle(ctx context.Context) *Hold {
	s := t.inside(ctx)
	s.watch = runtime.AddCleanup(s, droppedParts, t.given)
	return &Hold{stay: stay{ctx: s}}
}

// droppedParts logs that a Hold of several locks became unreachable before its release.
func droppedParts(parts []*part) {
	for _, p := range parts {
		p.locker.client.droppedHold(p.h)
	}
}

// run calls fn while the locks are held, and then releases them.
func (t *together) run(ctx context.Context, fn func(context.Context) error) (err error) {
	s := t.inside(ctx)
	returned := false
	defer func() {
		s.over()
		releaseParts(withoutCancel(ctx), t.parts, false)
		for _, p := range t.parts {
			p.notHeldAgain()
			if p.err == nil && p.who.alone {
				p.h.reportLeft(p.locker.client, false)
			}
			if p.err != nil && !returned {
				p.locker.client.warn("unlock, after a panic", "name", p.locker.name, "err",
					p.error("unlock"))
			}
		}
		err = withUnlock(err, joined("unlock", t.given))
	}()
	err = fn(s)
	returned = true
	return err
}

// notHeldAgain turns errAgain into ErrNotHeld, as releaseWithin does. Here, errAgain means that the
// hold had already been released, so the caller has released more than it acquired.
func (p *part) notHeldAgain() {
	if p.err == errAgain {
		p.err = ErrNotHeld
	}
}

// several returns the context of a Hold of several locks, or nil.
func (s *stay) several() *several {
	if s.hold != nil {
		return nil
	}
	return s.ctx.(*several)
}

// release releases all locks.
func (s *several) release(ctx context.Context) error {
	s.over()
	releaseParts(ctx, s.parts, false)
	for _, p := range s.parts {
		p.notHeldAgain()
	}
	return joined("release", s.given)
}

// state returns the error of the first hold that was lost. If none was lost, it returns the error
// of the first hold that has ended for another reason, or nil.
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

// until returns the end of the time during which all of the locks are guaranteed to be held.
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

// token returns the token of the last hold that has one.
func (s *several) token() (token uint64) {
	for _, p := range s.given {
		token = cmp.Or(p.h.token(), token)
	}
	return token
}

// each calls the given function for every part, and joins the results with commas.
func (s *several) each(say func(*part) string) string {
	words := make([]string, len(s.given))
	for i, p := range s.given {
		words[i] = say(p)
	}
	return strings.Join(words, ", ")
}

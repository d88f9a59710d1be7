package redisson

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/seed951563bd/distsync/backend"
)

// denials are what servers refused inside the scripts of acquisitions: a command that the user may
// not run, a key that was not declared. Such a script may have written before, so that its error is
// Unknown, and is repeated; it would be so for ever. Therefore the next acquisition of that kind
// isn't sent, and certainly did nothing: its error is Refused, and ends the call, which takes back
// what the attempts before may have left. The one after that is sent: things may have changed.
type denials struct {
	mu   sync.Mutex
	last map[*kind]error
}

// take returns the error that the last acquisition of a kind was answered with, if it was denied.
func (d *denials) take(k *kind) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.last[k]
	if err == nil {
		return nil
	}
	delete(d.last, k)
	return &backend.Error{Kind: backend.Refused, Err: err}
}

// note notes what an acquisition of a kind was answered.
func (d *denials) note(k *kind, err error) {
	if !errors.Is(err, errDenied) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil {
		d.last = make(map[*kind]error)
	}
	d.last[k] = err
}

// runRelease carries out a release. A user who may not use the lock's channel as a key, which an
// acquisition doesn't, could not give back what it has: then the script is told another channel, to
// which nobody listens. As without permission to publish, nobody is woken, and all look by
// themselves.
func (s *session) runRelease(ctx context.Context, k *kind, name string, call Call) Reply {
	r := s.run(ctx, call)
	if mute, ok := k.mute(name, call); ok && r.deniedKeys() {
		return s.run(ctx, mute)
	}
	return r
}

// mute returns a call that doesn't use the lock's channel, if it did.
func (k *kind) mute(name string, call Call) (Call, bool) {
	if k.line {
		return call, false // there is no such channel
	}
	i := slices.Index(call.Keys, k.channel(name))
	if i < 0 {
		return call, false
	}
	call.Keys = slices.Clone(call.Keys)
	call.Keys[i] = name
	return call, true
}

// deniedKeys says whether the user may not use one of the keys.
func (r Reply) deniedKeys() bool {
	return strings.HasPrefix(r.Refusal, "NOPERM") && strings.Contains(r.Refusal, "key")
}

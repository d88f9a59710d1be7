package redisson

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/seed951563bd/distsync/backend"
)

// denials records acquisitions whose scripts failed because the server denied a command or a key,
// for example because the user lacks a permission, or because the script didn't declare the key.
// Such a script may have changed keys before it failed, so its error is Unknown, and the client
// would repeat the attempt forever. Therefore the session doesn't send the next acquisition of the
// same kind of lock. It returns an error of kind Refused instead, which is safe because the request
// wasn't sent. This error ends the call, and the client then releases what earlier attempts may
// have acquired. Later acquisitions are sent as usual, since the server may permit them by then.
type denials struct {
	mu   sync.Mutex
	last map[*kind]error
}

// take returns an error if the last acquisition of a kind was denied, and forgets the denial.
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

// note records the error of an acquisition if the server denied a part of it.
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

// runRelease runs a release. Unlike an acquisition, a release uses the lock's channel as a key. If
// the user has no permission for that key, runRelease sends the release again, with a channel that
// has no listeners. Then the lock is released, but no client is woken, and waiting clients poll.
func (s *session) runRelease(ctx context.Context, k *kind, name string, call Call) Reply {
	r := s.run(ctx, call)
	if mute, ok := k.mute(name, call); ok && r.deniedKeys() {
		return s.run(ctx, mute)
	}
	return r
}

// mute returns the call with the lock's name in place of the lock's channel. If the call has no
// such channel, mute returns false.
func (k *kind) mute(name string, call Call) (Call, bool) {
	if k.line {
		return call, false // the kind has no channel for releases
	}
	i := slices.Index(call.Keys, k.channel(name))
	if i < 0 {
		return call, false
	}
	call.Keys = slices.Clone(call.Keys)
	call.Keys[i] = name
	return call, true
}

// deniedKeys reports whether the server refused a command because the user has no permission for
// one of its keys.
func (r Reply) deniedKeys() bool {
	return strings.HasPrefix(r.Refusal, "NOPERM") && strings.Contains(r.Refusal, "key")
}

package dlock

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// Released returns a channel that gets a value after a release of the lock, in any process, until
// ctx ends or the client is closed. It is for observers that don't want the lock. The channel holds
// one value, so several releases may be one. It also gets a value each time that the store begins
// to tell of releases: look then, since some may have been missed. It is never closed.
//
// Messages get lost, and locks also end without one, so look now and then, too. A store that can't
// tell of releases sends no value.
func (l *Locker) Released(ctx context.Context) <-chan struct{} {
	l.mustBeMade()
	mustBeContext(ctx)
	released := make(chan struct{}, 1)
	wake := func() {
		select {
		case released <- struct{}{}:
		default:
		}
	}
	if l.client.notifier != nil {
		l.client.listen(ctx, backend.SubscribeRequest{
			Kind: rules[l.kind].family.representative(), Name: l.name, Watches: true,
			Wake: func(backend.Wakeup) { wake() },
		}, wake)
	}
	return released
}

// listen has the store tell of releases, until ctx ends, and calls stands each time that it begins
// to. It tries again where that fails, unless the store refuses.
func (c *Client) listen(ctx context.Context, req backend.SubscribeRequest, stands func()) {
	c.mu.Lock()
	defer c.unlock()
	c.backgroundLocked(func() {
		ctx, stop := c.untilClosed(ctx)
		defer stop()
		var tries backoff
		for {
			sub, err := c.notifier.Subscribe(ctx, req)
			if err == nil {
				stands()
				<-ctx.Done()
				sub.Close()
				return
			}
			if backend.KindOf(err) == backend.Refused ||
				!c.pause(ctx, tries.next(firstBackoff, longestPause(c.lease))) {
				return
			}
		}
	})
}

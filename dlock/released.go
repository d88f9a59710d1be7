package dlock

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// Released returns a channel that receives a value after each release of the lock, by any process,
// until ctx ends or the client is closed. It is for observers that don't want the lock. The channel
// has a buffer of one, so a value can stand for several releases. It also receives a value each
// time the store begins to send messages. Check the lock then, since releases might have been
// missed. The channel is never closed.
//
// Messages can get lost, and locks can end without a message, so also poll now and then. With a
// store that sends no messages, the channel never receives a value.
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
	if l.client.notifies {
		l.client.listen(ctx, backend.SubscribeRequest{
			Kind: l.kind.Family().Representative(), Name: l.name, Watches: true,
			Wake: func(backend.Wakeup) { wake() },
		}, wake)
	}
	return released
}

// listen makes the store send messages about releases until ctx ends. It calls the given function
// when the store begins to send them. If subscribing fails, it tries again, unless the store
// refuses.
func (c *Client) listen(ctx context.Context, req backend.SubscribeRequest, stands func()) {
	s := c.lock()
	defer c.unlock()
	s.background(func(c *Client) {
		ctx, stop := c.store.UntilEnd(ctx)
		defer stop()
		var tries backoff
		for {
			sub, err := c.store.Notifier.Subscribe(ctx, req)
			if err == nil {
				stands()
				<-ctx.Done()
				sub.Close()
				return
			}
			if backend.KindOf(err) == backend.Refused ||
				!c.store.Pause(ctx, tries.next(firstBackoff, longestPause(c.lease))) {
				return
			}
		}
	})
}

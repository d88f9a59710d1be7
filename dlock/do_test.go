package dlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/membackend"
)

const notGivenBack = "isn't given back"

// What fn re-enters and doesn't give back keeps the lock when Do has returned, since a goroutine of
// its may be inside still. Nobody else would notice, so that it is logged.
func TestADoThatGivesBackLessThanItTook(t *testing.T) {
	type locked struct {
		main *Locker
		also *Locker // what fn locks with its context, too, and doesn't unlock; nil: nothing
		ctx  func(*testing.T) context.Context
		do   func(l *Locker, ctx context.Context, fn func(context.Context) error) error
		logs int
	}
	plain := (*testing.T).Context
	owned := func(t *testing.T) context.Context { return WithOwner(t.Context(), NewOwner()) }
	do := func(l *Locker, ctx context.Context, fn func(context.Context) error) error { return l.Do(ctx, fn) }
	for name, lock := range map[string]func(c *Client) locked{
		"nothing": func(c *Client) locked { return locked{c.Locker("x"), nil, plain, do, 0} },
		"a lock":  func(c *Client) locked { l := c.Locker("x"); return locked{l, l, plain, do, 1} },
		"a read": func(c *Client) locked {
			l := c.RWLocker("x").Reader()
			return locked{l, l, plain, do, 1}
		},
		"a read under a write": func(c *Client) locked {
			rw := c.RWLocker("x")
			return locked{rw.Writer(), rw.Reader(), plain, do, 1}
		},
		"one of several": func(c *Client) locked {
			l := c.Locker("x")
			return locked{l, l, plain, func(l *Locker, ctx context.Context, fn func(context.Context) error) error {
				return All(l, c.Locker("y")).Do(ctx, fn)
			}, 1}
		},
		"of an owner, which may have it before and after": func(c *Client) locked {
			l := c.Locker("x")
			return locked{l, l, owned, do, 0}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, log := membackend.New(), new(logs)
				c, other := New(store, WithLogger(log.logger())), New(store, quiet())
				defer c.Close()
				defer other.Close()
				x := lock(c)
				var inside context.Context
				must(t, x.do(x.main, x.ctx(t), func(ctx context.Context) error {
					inside = ctx
					if x.also == nil {
						return nil
					}
					return x.also.LockContext(ctx)
				}))
				time.Sleep(time.Hour)
				if n := log.count(notGivenBack, "x"); n != x.logs {
					t.Errorf("it was logged %d times, not %d", n, x.logs)
				}
				if x.also != nil {
					if held, err := x.also.IsLocked(t.Context()); !held || err != nil {
						t.Errorf("IsLocked = %v, %v", held, err)
					}
					must(t, x.also.UnlockContext(inside)) // so it can be mended
				}
				mustTry(t, map[bool]*Locker{
					true: other.RWLocker("x").Writer(), false: other.Locker("x"),
				}[rules[x.main.kind].family == readWrites])
				empty(t, c)
			})
		})
	}
}

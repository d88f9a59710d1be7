package dlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

var errNoPermission = &backend.Error{Kind: backend.Refused, Err: errors.New("NOPERM")}

// A function returns how its lock was lost, as it should. The error of Do says that once, and is
// what both have said.
func TestALossIsSaidOnce(t *testing.T) {
	errWork := errors.New("at row 4")
	for name, test := range map[string]struct {
		returns func(ctx context.Context) error
		want    string // LOSS is what the loss says
		is      error
	}{
		"the cause": {context.Cause, `dlock: hold "x": LOSS`, ErrLost},
		"the cause, inside": {
			func(ctx context.Context) error {
				return fmt.Errorf("%w: %w", errWork,
					context.Cause(ctx))
			}, `at row 4: dlock: hold "x": LOSS`, errWork,
		},
		"the error of ctx": {
			context.Context.Err, `context canceled; dlock: unlock "x": LOSS`, context.Canceled,
		},
		"its own": {
			func(context.Context) error { return errWork }, `at row 4; dlock: unlock "x": LOSS`,
			errWork,
		},
		"nothing": {
			func(context.Context) error { return nil }, `dlock: unlock "x": LOSS`, ErrLost,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(membackend.New(), quiet())
				defer c.Close()
				for what, do := range map[string]func(
					context.Context, func(context.Context) error, ...AcquireOption,
				) error{
					"Do": c.Locker("x").Do, "Do of several": All(lockers(c, "x", "y")...).Do,
				} {
					err := do(t.Context(), func(ctx context.Context) error {
						c.Locker("x").ForceUnlock(t.Context())
						<-ctx.Done()
						return test.returns(ctx)
					})
					loss, ok := errors.AsType[*Loss](err)
					if !ok {
						t.Fatalf("%s = %v", what, err)
					}
					if want := strings.ReplaceAll(test.want, "LOSS",
						loss.Error()); err.Error() != want {
						t.Errorf("%s = %q, want %q", what, err, want)
					}
					var unlocks bool
					for _, e := range tree(err) {
						e, ok := e.(*Error)
						unlocks = unlocks || ok && e.Op == "unlock"
					}
					if !errors.Is(err, test.is) || !unlocks {
						t.Errorf("%s = %#v, in which there is no unlock, or not %v", what, err,
							test.is)
					}
				}
			})
		})
	}
}

// tree returns an error and all that it wraps.
func tree(err error) []error {
	all := []error{err}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			all = append(all, tree(inner)...)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, tree(inner)...)
		}
	}
	return all
}

// A call waits for what its own caller holds, since it got the wrong context: the error says where
// the lock is.
func TestHeldByACallOfTheSameClient(t *testing.T) {
	const here = "held by another call of this client, and this call isn't made in its name"
	for name, test := range map[string]struct {
		call func(ctx context.Context, c, other *Client) error
		want string
	}{
		"a wait": {func(ctx context.Context, c, other *Client) error {
			return c.Locker("x").LockContext(ctx, Wait(time.Second))
		}, `dlock: lock "x": not acquired in time: ` + here},
		"no wait": {func(ctx context.Context, c, other *Client) error {
			_, err := c.Locker("x").Acquire(ctx, Wait(0))
			return err
		}, `dlock: acquire "x": not acquired in time: ` + here},
		"a context that ends": {func(ctx context.Context, c, other *Client) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return c.Locker("x").Do(ctx, func(context.Context) error { return nil })
		}, `dlock: do "x": context deadline exceeded; ` + here},
		"several": {func(ctx context.Context, c, other *Client) error {
			return All(lockers(c, "y", "x")...).Do(ctx, func(context.Context) error {
				return nil
			}, Wait(time.Second))
		}, `dlock: do "x": not acquired in time: ` + here},
		"another kind": {func(ctx context.Context, c, other *Client) error {
			return c.FairLocker("x").LockContext(ctx, Wait(time.Second))
		}, `dlock: lock "x": not acquired in time: ` + here},
		"another kind, and no wait": {func(ctx context.Context, c, other *Client) error {
			return c.FencedLocker("x").LockContext(ctx, Wait(0))
		}, `dlock: lock "x": not acquired in time: ` + here},
		"a read beside a write": {func(ctx context.Context, c, other *Client) error {
			rw := c.RWLocker("rw")
			rw.Lock()
			defer rw.Unlock()
			return rw.Reader().LockContext(ctx, Wait(time.Second))
		}, `dlock: rlock "rw": not acquired in time: ` + here},
		"a read beside a write, and no wait": {func(ctx context.Context, c, other *Client) error {
			c.RWLocker("rw").Lock()
			return c.RWLocker("rw").Reader().LockContext(ctx, Wait(0))
		}, `dlock: rlock "rw": not acquired in time: ` + here},
		"a write beside a read": {func(ctx context.Context, c, other *Client) error {
			rw := c.RWLocker("rw")
			rw.RLock()
			defer rw.RUnlock()
			return rw.Writer().LockContext(ctx, Wait(time.Second))
		}, `dlock: lock "rw": not acquired in time: ` + here},
		"permits": {func(ctx context.Context, c, other *Client) error {
			_, err := c.Semaphore("s", 1).Acquire(ctx, 1)
			must(t, err)
			_, err = c.Semaphore("s", 1).Acquire(ctx, 1, Wait(0))
			return err
		}, `dlock: acquire "s": not acquired in time: held by another`},
		"another client": {func(ctx context.Context, c, other *Client) error {
			return other.Locker("x").LockContext(ctx, Wait(time.Second))
		}, `dlock: lock "x": not acquired in time: held by another`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := membackend.New()
				c, other := New(store, quiet()), New(store, quiet())
				defer c.Close()
				defer other.Close()
				must(t, c.Locker("x").Do(t.Context(), func(context.Context) error {
					err := test.call(t.Context(), c, other)
					if !errors.Is(err, ErrHeld) || err.Error() != test.want {
						t.Errorf("%v, want %v", err, test.want)
					}
					return nil
				}))
			})
		})
	}
}

// A step that the store refuses for good ends the call at once, and the error says that trying
// again doesn't help. A refused subscription is no reason to end: waiters poll, and it isn't asked
// for again.
func TestARefusalEndsTheCall(t *testing.T) {
	for _, refused := range []string{"acquire", "re-entry", "release", "partial release",
		"subscribe"} {
		t.Run(refused, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScript(membackend.New())
				c, other := New(b, quiet()), New(b.Backend, quiet())
				defer c.Close()
				defer other.Close()
				ctx, l := WithOwner(t.Context(), NewOwner()), c.Locker("x")
				lock := func() error { return l.LockContext(ctx) }
				unlock := func() error { return l.UnlockContext(ctx) }
				var call func() error
				switch refused {
				case "acquire":
					call = lock
				case "re-entry":
					must(t, lock())
					call = lock
				case "partial release":
					must(t, lock())
					must(t, lock())
					call = unlock
				case "release":
					must(t, lock())
					call = unlock
				case "subscribe":
					must(t, other.Locker("x").LockContext(t.Context(), FixedLease(time.Minute)))
					call = lock
				}
				var requests atomic.Int64
				refuse := func(s *anyStep) {
					if s.op != "renew" {
						requests.Add(1)
						s.fail(errNoPermission)
					}
				}
				if refused == "subscribe" {
					b.subscribe.set(func(s *subscribeStep) { refuse(&s.anyStep) })
				} else {
					b.set(refuse)
				}
				began := time.Now()
				err := call()
				took, asked := time.Since(began), requests.Load()
				switch {
				case refused == "subscribe":
					if err != nil || took > time.Minute+longestPoll || asked != 1 {
						t.Errorf("%d subscriptions, and after %v: %v", asked, took, err)
					}
				case refused == "partial release":
					if err != nil || took > 0 || asked != 1 {
						// the last one gives back what the store counts too much
						t.Errorf("%d requests, and after %v: %v", asked, took, err)
					}
				default:
					if !errors.Is(err, ErrUnavailable) || !errors.Is(err, errNoPermission) ||
						took > 0 || asked != 1 {
						t.Errorf("%d requests, and after %v: %v", asked, took, err)
					}
					if want := "store unavailable: it refuses this for as long as nobody puts it " +
						"right: NOPERM"; err != nil && !strings.HasSuffix(err.Error(), want) {
						t.Errorf("%q doesn't say %q", err, want)
					}
				}
				time.Sleep(2 * DefaultLease)
				if more := requests.Load() - asked; refused == "release" && more > 1 ||
					refused == "acquire" && more > 0 {
					t.Errorf("%d more requests in the background", more)
				}
				b.set(nil)
				b.subscribe.set(nil)
				if refused == "re-entry" || refused == "partial release" || refused == "subscribe" {
					must(t, unlock())
				}
			})
		})
	}
}

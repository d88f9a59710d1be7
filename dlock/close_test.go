package dlock

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// Close waits for steps that are under way in their callers' goroutines.
func TestCloseWaitsForSteps(t *testing.T) {
	for name, context := range map[string]func(*testing.T) context.Context{
		"background":  func(*testing.T) context.Context { return context.Background() },
		"cancellable": (*testing.T).Context,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context(t)
				left := make(chan struct{})
				store := newScript(membackend.New()).but(returns)
				store.acquire.set(func(s *acquireStep) {
					s.hang()
					time.Sleep(time.Millisecond)
					close(left)
				})
				c := New(store, quiet())
				locked := make(chan error, 1)
				go func() { locked <- c.Locker("x").LockContext(ctx) }()
				synctest.Wait()
				c.Close()
				select {
				case <-left:
				default:
					t.Error("a step goes on after Close")
				}
				if err := <-locked; !errors.Is(err, ErrClosed) {
					t.Errorf("LockContext = %v, want ErrClosed", err)
				}
			})
		})
	}
}

func TestCloseWaitsForStepsThatTakeAMoment(t *testing.T) {
	var ended atomic.Bool
	onBench(t, func(m *script) {
		m.acquire.set(func(s *acquireStep) {
			<-s.ctx.Done()
			time.Sleep(100 * time.Millisecond)
			ended.Store(true)
			s.fail(errCut)
		})
	}, func(b *bench) {
		locked := make(chan error)
		go func() { locked <- b.client.Locker("x").LockContext(b.Context()) }()
		synctest.Wait()
		b.must(b.client.Close())
		if !ended.Load() {
			b.Error("a step goes on after Close")
		}
		if err := <-locked; !errors.Is(err, ErrClosed) {
			b.Errorf("LockContext = %v, want ErrClosed", err)
		}
	})
}

// An unlock that Close overtakes.
func TestUnlockOvertakenByClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := membackend.New()
		b := newScript(mem)
		n := 0
		b.release.set(func(s *releaseStep) {
			n++
			if n == 1 {
				s.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("LOADING")})
			}
		})
		c := New(b, quiet())
		l := c.Locker("x")
		mustTry(t, l)
		res := make(chan error)
		go func() { res <- l.UnlockContext(context.Background()) }()
		synctest.Wait()
		c.Close()
		t.Log("unlock:", <-res, "requests:", n)
		if ok, _ := New(mem).Locker("x").TryLock(t.Context()); !ok {
			t.Error("an unlock just before Close leaves the lock held; one just after frees it")
		}
	})
}

// Close and Lock in an uninterruptible step.
func TestCloseFreesAWaiterFromAHungStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) { s.waitFor(open) })
		c := New(b, quiet())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Locker("x").LockContext(context.Background())
		}()
		synctest.Wait()
		c.Close()
		time.Sleep(time.Hour)
		select {
		case <-done:
		default:
			t.Error("LockContext hasn't returned an hour after Close")
		}
		close(open)
		<-done
	})
}

// An unlock that waits in the background for its turn, and Close.
func TestCloseEndsAnUnlockInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := newScript(membackend.New())
		b.acquire.set(func(s *acquireStep) {
			if s.req.Reentry {
				s.waitFor(open)
			}
		})
		c := New(b, quiet())
		l := c.Locker("x")
		o := NewOwner()
		l.For(o).Lock()
		go func() { defer func() { recover() }(); l.For(o).Lock() }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(WithOwner(t.Context(), o), time.Millisecond)
		defer cancel()
		l.UnlockContext(ctx)
		c.Close()
		buf := make([]byte, 1<<20)
		if s := string(buf[:runtime.Stack(buf, true)]); strings.Contains(s, "releaseLater.func1") {
			t.Error("a goroutine that waits for its turn to unlock is left after Close")
		}
		close(open)
		synctest.Wait()
	})
}

// Close calls traces before it ends the steps under way. No trace can send another step.
func TestTracesOfCloseSendNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c *Client
		told := 0
		released := func(context.Context, ReleaseDone) {
			told++
			if ok, err := c.Locker("y").TryLock(t.Context()); ok || !errors.Is(err, ErrClosed) {
				t.Errorf("TryLock while the client is being closed: %v, %v", ok, err)
			}
			if _, err := c.Locker("y").ForceUnlock(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("ForceUnlock while the client is being closed: %v", err)
			}
		}
		c = New(newScript(membackend.New()), quiet(), WithTrace(&Trace{ReleaseDone: released}))
		mustTry(t, c.Locker("x"))
		c.Close()
		if told == 0 {
			t.Error("no trace was called")
		}
	})
}

// A call that comes just as the client is closed doesn't wait for what nobody will tell it.
func TestACallThatComesAsTheClientIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(membackend.New(), quiet())
		l := c.Locker("x")
		mustTry(t, l)
		a := l.newCall(t.Context(), caller{party: l.plain}, acquireOptions{lease: c.lease})
		over := a.client.over(t.Context())
		c.Close()
		if move, h, err := a.nextMove(over); move != toEnd || h != nil || !errors.Is(err, ErrClosed) {
			t.Errorf("the call's next move: %v, %v, %v; want ErrClosed", move, h, err)
		}
		mustUnlock(t, t.Context(), l)
	})
}

package dlock

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

// wantRead checks that a hold to read is there, and that another client may read beside it, and not
// write.
func wantRead(t *testing.T, h *Hold, other *Client) {
	t.Helper()
	if over(h.Lost()) || h.Err() != nil {
		t.Errorf("the reader has lost what it has: %v", h.Err())
	}
	theirs := other.RWLocker("x")
	if ok, err := theirs.Reader().TryLock(t.Context()); !ok || err != nil {
		t.Errorf("a reader elsewhere: %v, %v", ok, err)
		return
	}
	must(t, theirs.Reader().UnlockContext(t.Context()))
	if ok, err := theirs.Writer().TryLock(t.Context()); ok || err != nil {
		t.Errorf("a writer elsewhere: %v, %v", ok, err)
	}
}

// An answer about the write of a lock that has become a read meanwhile says nothing about the read.
func TestAnswersAboutAWriteThatIsNoMore(t *testing.T) {
	const renewal = DefaultLease/3 - DefaultLease/3%(DefaultLease/16) // when the first one is sent
	for name, c := range map[string]struct {
		script   func(b *script, wait func())
		ask      func(c *Client)
		handover time.Duration
	}{
		"of a renewal": {
			func(b *script, wait func()) {
				b.renew.set(func(s *renewStep) {
					if s.req.Kind == backend.Write {
						wait()
					}
				})
			},
			func(*Client) { time.Sleep(renewal) },
			renewal + 100*time.Millisecond,
		},
		"of a look": {
			func(b *script, wait func()) {
				b.look.set(func(s *lookStep) {
					wait()
				})
			},
			func(c *Client) { lookAt(c, "x") },
			DefaultHandover,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newScript(membackend.New())
				var waits atomic.Int32
				c.script(b, func() {
					if waits.Add(1) == 1 {
						time.Sleep(time.Second)
					}
				})
				client, h := lending(t, b, WithHandover(c.handover))
				other := New(b.Backend, quiet())
				defer other.Close()
				c.ask(client)
				time.Sleep(2 * time.Second)
				if waits.Load() == 0 {
					t.Fatal("nothing was asked")
				}
				wantRead(t, h, other)
				must(t, h.Release(t.Context()))
				wantFree(t, other, "x")
			})
		})
	}
}

// The readers leave between two attempts to downgrade, the first of which the store has carried
// out.
func TestReadersLeaveBetweenAttemptsToDowngrade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newScript(membackend.New())
		var asked atomic.Int32
		b.acquire.set(func(s *acquireStep) {
			s.do()
			if s.req.Kind == backend.Read && asked.Add(1) == 1 {
				s.fail(errors.New("no answer"))
			}
		})
		_, h := lending(t, b)
		other := New(b.Backend, quiet())
		defer other.Close()
		time.Sleep(DefaultHandover)
		synctest.Wait()
		must(t, h.Release(t.Context()))
		time.Sleep(time.Second)
		if n := asked.Load(); n != 1 {
			t.Fatalf("the read was asked for %d times", n)
		}
		wantFree(t, other, "x")
	})
}

// The store counts a write twice, since it didn't take a partial release, when it is downgraded:
// all of it goes.
func TestADowngradeOfAWriteThatTheStoreCountsTwice(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		ctx, rw := WithOwner(t.Context(), NewOwner()), c.RWLocker("x")
		must(t, rw.Writer().LockContext(ctx))
		must(t, rw.Writer().LockContext(ctx))
		b.release.fail(&backend.Error{Kind: backend.Retry, Err: errors.New("busy")})
		must(t, rw.Writer().UnlockContext(ctx))
		b.release.set(nil)
		reading := make(chan *Hold)
		go func() {
			h, err := rw.Reader().Acquire(t.Context())
			must(t, err)
			reading <- h
		}()
		synctest.Wait()
		must(t, rw.Writer().UnlockContext(ctx))
		h := <-reading
		time.Sleep(time.Second)
		wantRead(t, h, other)
		must(t, h.Release(t.Context()))
		wantFree(t, other, "x")
	})
}

// A read under a write is carried out after the write, and what was read under it, are released,
// and while that is being taken back: the answer to the take-back may be older.
func TestAReadUnderAWriteThatIsCarriedOutDuringItsTakeBack(t *testing.T) {
	onScript(t, func(t *testing.T, b *script, c, other *Client) {
		rw, ctx := c.RWLocker("x"), WithOwner(t.Context(), NewOwner())
		must(t, rw.Writer().LockContext(ctx))
		must(t, rw.Reader().LockContext(ctx))
		must(t, rw.Reader().UnlockContext(ctx))
		b.acquire.set(func(s *acquireStep) {
			b.acquire.set(nil)
			time.Sleep(100 * time.Millisecond)
		})
		var released atomic.Int32
		b.release.set(func(s *releaseStep) {
			if s.req.Kind != backend.Read {
				return
			}
			switch released.Add(1) {
			case 1:
				s.fail(&backend.Error{Kind: backend.Refused, Err: errors.New("refused")})
			case 2:
				s.do()
				time.Sleep(200 * time.Millisecond)
			}
		})
		read := make(chan error)
		go func() {
			_, err := rw.Reader().TryLock(ctx)
			read <- err
		}()
		synctest.Wait()
		must(t, rw.Writer().UnlockContext(ctx))
		if err := <-read; err == nil {
			// it has read after all, with a claim of its own
			must(t, rw.Reader().UnlockContext(ctx))
		}
		time.Sleep(time.Second)
		if n := released.Load(); n < 3 {
			t.Errorf("the read was released %d times", n)
		}
		wantFree(t, other, "x")
	})
}

package dlock

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/membackend"
)

var discard = WithLogger(slog.New(slog.DiscardHandler))

// Whatever locks and clients are called, equal names exclude each other and different ones don't,
// also where two clients share an id.
func FuzzNames(f *testing.F) {
	f.Add("n", "m", "a", "b")
	f.Add("n", "n:1", "a", "a")
	f.Add("a\x00", "a", "a:1", "a")
	f.Add("\xff", "\xfe", "ü:", ":")
	f.Fuzz(func(t *testing.T, name, other, idA, idB string) {
		if name == "" || name == other || idA == "" || idB == "" {
			return
		}
		store := membackend.New()
		a := New(store, WithClientID(idA), discard)
		defer a.Close()
		b := New(store, WithClientID(idB), discard)
		defer b.Close()
		try := func(c *Client, name string) bool {
			t.Helper()
			ok, err := c.Locker(name).TryLock(t.Context())
			if err != nil && name != "" {
				t.Errorf("lock %q, clients %q and %q: %v", name, idA, idB, err)
			}
			return ok
		}
		if !try(a, name) || try(b, name) || try(a, name) {
			t.Errorf("lock %q, clients %q and %q: not exactly one gets it", name, idA, idB)
		}
		if other != "" && (!try(b, other) || try(a, other)) {
			t.Errorf("lock %q beside %q, clients %q and %q: not exactly one gets it", other, name,
				idA, idB)
		}
	})
}

// Whatever a store answers, a lock is held only where it said so, and until a lease after that at
// the most; no call panics or outlasts its context; and Close leaves nothing.
func FuzzBackend(f *testing.F) {
	held, granted := []byte{0, 0, 0, 0}, []byte{0, 1, 1, 0}
	for _, op := range []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9} {
		f.Add([]byte{1, op, op}, slices.Repeat(granted, 20), int64(time.Second), int64(0))
		f.Add([]byte{2, op, 0, 2, op, 2}, slices.Repeat(granted, 20), int64(time.Millisecond),
			int64(50*time.Millisecond))
		f.Add([]byte{0, 5, op, 9, 2, 5, 2, 2},
			append(slices.Repeat(granted, 2), slices.Repeat(held, 10)...), int64(1<<62), int64(-1))
	}
	// a count that is too low
	f.Add([]byte{1, 0, 8, 2}, slices.Repeat([]byte{0, 1, 0, 0}, 20), int64(time.Second), int64(0))
	f.Add([]byte{0, 9, 2}, []byte{0, 1, 0x80, 0xff, 3, 0, 2, 255, 2, 1, 255, 7}, int64(-1),
		int64(1<<62))
	f.Fuzz(func(t *testing.T, ops, answers []byte, lease, wait int64) {
		if len(ops) > 30 || len(answers) > 400 {
			t.Skip("more of the same")
		}
		synctest.Test(t, func(t *testing.T) {
			b := &fuzzedBackend{answers: answers}
			c := New(b, WithLease(3*time.Second), discard)
			defer c.Close()
			o := NewOwner()
			l := c.Locker("n").For(o)
			for _, op := range ops {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				begin, before := time.Now(), b.granted()
				var got bool
				var err error
				switch op % 10 {
				case 0:
					got, err = l.TryLock(ctx)
				case 1:
					got, err = l.TryLock(ctx, FixedLease(time.Duration(lease)),
						Wait(time.Duration(wait)))
				case 2:
					err = l.UnlockContext(ctx)
				case 3:
					got, err = c.Locker("n").TryLock(ctx, Wait(20*time.Millisecond))
				case 4:
					err = l.LockContext(ctx, FixedLease(time.Duration(lease)))
					got = err == nil
				case 5:
					err = l.Do(ctx, func(context.Context) error { got = true; return nil })
				case 6:
					_, err = l.ForceUnlock(ctx)
				case 7:
					_, err = l.TTL(ctx)
				case 8:
					var n int
					n, err = l.HoldCount(ctx)
					if n < 0 || n > 0 && l.present(caller{party: o}) == nil {
						t.Errorf("%d holds", n)
					}
				case 9:
					time.Sleep(2 * time.Second)
				}
				cancel()
				if got && b.granted() == before {
					t.Errorf("step %d got the lock, and the store never said so: %v", op%10, err)
				}
				if wrapped := (*Error)(nil); err != nil && !errors.As(err, &wrapped) {
					t.Errorf("step %d: the error %v is no *Error", op%10, err)
				}
				if d := time.Since(begin); d > 7*time.Second {
					t.Errorf("step %d took %v", op%10, d)
				}
				checkHolds(t, c, b.most, time.Duration(lease))
			}
		})
	})
}

// checkHolds checks that no hold is relied on for longer than a lease from now, or counts more than
// the store ever said.
func checkHolds(t *testing.T, c *Client, most int, lease time.Duration) {
	t.Helper()
	c.mu.Lock()
	defer c.unlock()
	for h := range c.state.holds() {
		if left := h.claim.Until() - c.now(); left > max(lease, c.lease) {
			t.Errorf("a hold is relied on for another %v", left)
		}
		if h.count < 1 || int(h.count) > max(most, 1) {
			t.Errorf("%d holds, and the store said %d at most", h.count, most)
		}
	}
}

// A fuzzedBackend answers with what it is given, four bytes an answer, and with errors when it has
// no more.
type fuzzedBackend struct {
	mu      sync.Mutex
	answers []byte
	grants  int // of those answers, how many say that a lock was acquired
	most    int // the highest count among them
}

// A fuzzedAnswer is what any step is answered.
type fuzzedAnswer struct {
	yes  bool
	kind uint8
	n    int
	d    time.Duration
	err  error
}

var (
	fuzzedCounts = []int{1, 2, 3, 0, -1, math.MaxInt, math.MinInt}
	fuzzedTimes  = []time.Duration{
		0, time.Millisecond, time.Second, -1, -time.Hour, math.MaxInt64, math.MinInt64,
	}
)

func (b *fuzzedBackend) next(ctx context.Context, acquire bool) fuzzedAnswer {
	b.mu.Lock()
	var raw [4]byte
	n := copy(raw[:], b.answers)
	b.answers = b.answers[n:]
	a := fuzzedAnswer{
		yes: raw[1]&1 == 1, kind: raw[1] >> 1,
		n: fuzzedCounts[int(raw[2])%len(fuzzedCounts)],
		d: fuzzedTimes[int(raw[3])%len(fuzzedTimes)],
	}
	switch kind := raw[0] % 6; {
	case n == 0 || kind == 1:
		a.err = errors.New("no answer")
	case kind == 2, kind == 3:
		a.err = &backend.Error{
			Kind: backend.ErrorKind(kind - 1), Err: errors.New("not carried out"),
		}
	case kind == 4:
		a.err = &backend.Error{Kind: backend.ErrorKind(raw[1]), Err: context.Canceled}
	case kind == 5:
		a.err = errors.New("late")
	case acquire && a.yes:
		b.grants++
		b.most = max(b.most, a.n)
	}
	b.mu.Unlock()
	if raw[0]%6 == 5 {
		<-ctx.Done()
	}
	return a
}

func (b *fuzzedBackend) granted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.grants
}

func (b *fuzzedBackend) Open() backend.Session  { return b }
func (b *fuzzedBackend) Limits() backend.Limits { return backend.Limits{} }
func (b *fuzzedBackend) Close() error           { return nil }

func (b *fuzzedBackend) Acquire(
	ctx context.Context, _ backend.AcquireRequest,
) (backend.AcquireResult, error) {
	a := b.next(ctx, true)
	return backend.AcquireResult{Acquired: a.yes, Count: a.n, Remaining: a.d, Token: uint64(a.n)},
		a.err
}

func (b *fuzzedBackend) Release(
	ctx context.Context, _ backend.ReleaseRequest,
) (backend.ReleaseResult, error) {
	a := b.next(ctx, false)
	return backend.ReleaseResult{Outcome: backend.ReleaseOutcome(a.kind)}, a.err
}

func (b *fuzzedBackend) Renew(
	ctx context.Context, _ backend.RenewRequest,
) (backend.RenewResult, error) {
	a := b.next(ctx, false)
	return backend.RenewResult{Held: a.yes}, a.err
}

func (b *fuzzedBackend) ForceRelease(
	ctx context.Context, _ backend.ForceReleaseRequest,
) (backend.ForceReleaseResult, error) {
	a := b.next(ctx, false)
	return backend.ForceReleaseResult{Released: a.yes}, a.err
}

func (b *fuzzedBackend) Look(
	ctx context.Context, _ backend.LookRequest,
) (backend.LookResult, error) {
	a := b.next(ctx, false)
	return backend.LookResult{Held: a.yes, Count: a.n, Remaining: a.d}, a.err
}

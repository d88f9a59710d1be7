package recipes

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// payCutOff has payments made, each in three seconds, by a process that is cut off from the store
// at once, and says what came of it: how many of them were debited and credited, how many of these
// after another had got the lock, and the error.
func payCutOff(
	t *testing.T, pay func(*books, context.Context, []int) error,
) (debited, credited, beside int, err error) {
	store := membackend.New()
	way := lineTo(store)
	lock := replicaOn(t, way).Locker("lock:books")
	next := replicaOn(t, store).Locker("lock:books")
	var others atomic.Bool
	write := func(n *int) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error {
			way.down.Store(true)
			if err := sleep(ctx, 1500*time.Millisecond); err != nil {
				return err
			}
			*n++
			if others.Load() {
				beside++
			}
			return nil
		}
	}
	b := &books{lock, write(&debited), write(&credited)}
	paid := make(chan error)
	go func() { paid <- pay(b, t.Context(), make([]int, 20)) }()
	synctest.Wait()
	next.Lock()
	others.Store(true)
	err = <-paid
	next.Unlock()
	return debited, credited, beside, err
}

func TestPayingWithoutLookingAtTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		debited, credited, beside, err := payCutOff(t, (*books).payWrong)
		if debited != 20 || credited != 20 || beside != 20 || !errors.Is(err, dlock.ErrLost) {
			t.Errorf("debited %d, credited %d, writes beside another: %d; %v", debited, credited,
				beside, err)
		}
	})
}

func TestPayingHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		debited, credited, beside, err := payCutOff(t, (*books).payWrongToo)
		if debited != 10 || credited != 9 || beside != 0 || !errors.Is(err, dlock.ErrLost) {
			t.Errorf("debited %d, credited %d, writes beside another: %d; %v", debited, credited,
				beside, err)
		}
	})
}

func TestPayingWhatWasBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		debited, credited, beside, err := payCutOff(t, (*books).pay)
		if debited < 8 || debited != credited || beside != 0 || !errors.Is(err, errTooLate) {
			t.Errorf("debited %d, credited %d, writes beside another: %d; %v", debited, credited,
				beside, err)
		}
	})
}

// When the context ends, or the lock is forced, the payment that has begun is finished, and no
// other is begun.
func TestPayingUntilTold(t *testing.T) {
	for name, tell := range map[string]func(ctx context.Context, b *books, cancel func()){
		"canceled": func(_ context.Context, _ *books, cancel func()) { cancel() },
		"forced":   func(ctx context.Context, b *books, _ func()) { b.lock.ForceUnlock(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var debited, credited int
				b := &books{lock: replicaOn(t, membackend.New()).Locker("lock:books")}
				ctx, cancel := context.WithCancel(t.Context())
				b.debit = func(ctx context.Context, _ int) error {
					debited++
					tell(ctx, b, cancel)
					return ctx.Err()
				}
				b.credit = func(ctx context.Context, _ int) error { credited++; return ctx.Err() }
				if err := b.pay(ctx, make([]int, 20)); err == nil || debited != 1 || credited != 1 {
					t.Errorf("debited %d, credited %d; %v", debited, credited, err)
				}
			})
		})
	}
}

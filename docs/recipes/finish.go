package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// books records a payment with two writes, which can't be in one transaction.
type books struct {
	lock          *dlock.Locker
	debit, credit func(ctx context.Context, payment int) error
}

func (b *books) payWrong(ctx context.Context, payments []int) error {
	return b.lock.Do(ctx, func(context.Context) error { // the code below uses the outer ctx
		for _, p := range payments {
			if err := b.debit(ctx, p); err != nil {
				return err
			}
			if err := b.credit(ctx, p); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *books) payWrongToo(ctx context.Context, payments []int) error {
	return b.lock.Do(ctx, func(ctx context.Context) error {
		for _, p := range payments {
			if err := b.debit(ctx, p); err != nil {
				return err
			}
			if err := b.credit(ctx, p); err != nil { // ctx may have ended since the debit
				return err
			}
		}
		return nil
	})
}

const twoWrites = 4 * time.Second // the longest time that both writes take

var errTooLate = errors.New("the lock may end before both are written")

func (b *books) pay(ctx context.Context, payments []int) (err error) {
	hold, err := b.lock.Acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release(ctx)) }()
	for _, p := range payments {
		if err := b.payOne(hold, p); err != nil {
			return err
		}
	}
	return nil
}

// payOne begins a payment only if it can finish it while the lock surely lasts. It finishes each
// payment that it has begun.
func (b *books) payOne(hold *dlock.Hold, payment int) error {
	if hold.Context().Err() != nil { // lost, or not wanted any more
		return context.Cause(hold.Context())
	}
	until := hold.Until() // the lock lasts until then even if all renewals fail
	if time.Until(until) < twoWrites {
		return errTooLate
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(hold.Context()), until)
	defer cancel()
	if err := b.debit(ctx, payment); err != nil {
		return err
	}
	return b.credit(ctx, payment)
}

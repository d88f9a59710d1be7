package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// Books are where a payment is two writes, and there is no transaction for both.
type books struct {
	lock          *dlock.Locker
	debit, credit func(ctx context.Context, payment int) error
}

func (b *books) payWrong(ctx context.Context, payments []int) error {
	return b.lock.Do(ctx, func(context.Context) error { // what follows uses the outer ctx
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

const twoWrites = 4 * time.Second // take no longer

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

// payOne begins nothing that it can't finish while the lock surely lasts, and finishes what it has begun.
func (b *books) payOne(hold *dlock.Hold, payment int) error {
	if hold.Context().Err() != nil { // lost, or not wanted any more
		return context.Cause(hold.Context())
	}
	until := hold.Until() // it lasts so long even if no renewal gets through any more
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

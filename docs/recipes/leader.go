package recipes

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

func runWrong(ctx context.Context, client *dlock.Client, send func(context.Context) error) error {
	election := client.Election("invoices")
	go election.Run(ctx, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	for every := time.Tick(time.Minute); ; {
		select {
		case <-every:
		case <-ctx.Done():
			return nil
		}
		if election.IsLeader() { // so it led a moment ago
			if err := send(ctx); err != nil { // sending may take minutes, without another check
				return err
			}
		}
	}
}

func runWrongToo(
	ctx context.Context, client *dlock.Client, send func(context.Context) error,
) error {
	if leads, err := client.Locker("invoices").TryLock(ctx); err != nil || !leads {
		return err // another replica leads now
	}
	for every := time.Tick(time.Minute); ; {
		select {
		case <-every:
		case <-ctx.Done():
			return nil
		}
		if err := send(ctx); err != nil {
			return err
		}
	}
}

func runOnLeader(
	ctx context.Context, client *dlock.Client, send func(context.Context) error,
) error {
	return client.Election("invoices").Run(ctx, func(ctx context.Context) error { // it leads
		for every := time.Tick(time.Minute); ; {
			select {
			case <-every:
			case <-ctx.Done():
				return nil // Run starts a new campaign, unless its own context has ended
			}
			if err := send(ctx); err != nil {
				return err // Run resigns, and returns this error unless leadership was lost
			}
		}
	})
}

package recipes

import (
	"context"

	"github.com/seed951563bd/distsync/dlock"
)

// A controller is like those in client-go's examples. Run starts workers, and returns when ctx and
// the workers have ended.
type controller interface {
	Run(ctx context.Context, workers int) error
}

func controlWrong(ctx context.Context, election *dlock.Election, c controller) error {
	return election.Run(ctx, func(ctx context.Context) error {
		go c.Run(ctx, 2) // allowed in OnStartedLeading, which has a goroutine of its own
		return nil
	})
}

func controlWrongToo(ctx context.Context, election *dlock.Election, c controller) error {
	return election.Run(ctx, func(leads context.Context) error {
		go c.Run(ctx, 2)
		<-leads.Done()
		return nil // the next leader begins while these workers still run
	})
}

func control(ctx context.Context, election *dlock.Election, c controller) error {
	return election.Run(ctx, func(ctx context.Context) error {
		return c.Run(ctx, 2) // the next leader begins when this has returned
	})
}

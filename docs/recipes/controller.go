package recipes

import (
	"context"

	"github.com/seed951563bd/distsync/dlock"
)

// A controller is like the ones in client-go's examples. Run starts workers, and returns when ctx
// has ended and the workers have stopped.
type controller interface {
	Run(ctx context.Context, workers int) error
}

func controlWrong(ctx context.Context, election *dlock.Election, c controller) error {
	return election.Run(ctx, func(ctx context.Context) error {
		go c.Run(ctx, 2) // fine in OnStartedLeading: it has a goroutine
		return nil
	})
}

func controlWrongToo(ctx context.Context, election *dlock.Election, c controller) error {
	return election.Run(ctx, func(leads context.Context) error {
		go c.Run(ctx, 2)
		<-leads.Done()
		return nil // the next leader starts while workers run
	})
}

func control(ctx context.Context, election *dlock.Election, c controller) error {
	return election.Run(ctx, func(ctx context.Context) error {
		return c.Run(ctx, 2) // the next leader starts when this returns
	})
}

package postgresbackend

import (
	"context"

	"github.com/seed951563bd/distsync/backend"
)

// Sweep has a session delete what is over, and says how much that was.
func Sweep(ctx context.Context, s backend.Session) (int64, error) { return s.(*session).sweep(ctx) }

package quorumbackend

import (
	"time"

	"github.com/seed951563bd/distsync/backend"
)

// Home returns the number of the store that is asked first for a name.
var Home = home

// Patient returns the backend as one that waits for every store, however busy the machine is.
func Patient(b backend.Backend) backend.Backend {
	q := *b.(*quorum)
	q.patience = time.Minute
	return &q
}

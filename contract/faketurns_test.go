package contract

import (
	"sync"

	"github.com/seed951563bd/distsync/membackend"
)

// fakeTurns is what the sessions of a fakeStore remember together, for its faults in permits and fair locks.
type fakeTurns struct {
	fault string
	mu    sync.Mutex
}

func newFakeTurns(fault string, _ *membackend.Backend) *fakeTurns { return &fakeTurns{fault: fault} }

// turnsFake is a session of membackend with one of these faults.
type turnsFake struct {
	memSession
	st *fakeTurns
}

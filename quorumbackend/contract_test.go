package quorumbackend_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/quorumbackend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// On three stores in memory all of the suite is run: time costs nothing there.
func TestContract(t *testing.T) {
	contract.Run(t, contract.Harness{Virtual: true, NewStore: func(*testing.T) contract.Store {
		stores := []backend.Backend{membackend.New(), membackend.New(), membackend.New()}
		b := quorumbackend.New(stores...)
		return contract.Store{Backend: func() backend.Backend { return b }, OwnersApart: true}
	}})
}

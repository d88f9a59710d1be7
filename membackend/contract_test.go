package membackend_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/membackend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newStore(*testing.T) contract.Store {
	b := membackend.New()
	return contract.Store{
		Backend: func() backend.Backend { return b },
		Wipe:    b.Forget,
	}
}

func TestContract(t *testing.T) {
	t.Run("virtual time", func(t *testing.T) {
		contract.Run(t, contract.Harness{NewStore: newStore, Virtual: true})
	})
	t.Run("real time", func(t *testing.T) {
		contract.Run(t, contract.Harness{NewStore: func(t *testing.T) contract.Store {
			if strings.Contains(t.Name(), "/locker") {
				t.Skip("takes minutes; run in virtual time here, and in real time on other stores")
			}
			return newStore(t)
		}})
	})
}

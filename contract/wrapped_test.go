package contract

import (
	"reflect"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/internal/test/history"
	"github.com/seed951563bd/distsync/membackend"
)

// An ableStore is one in memory that says itself what its sessions can do.
type ableStore struct {
	backend.Backend
	can func(backend.Capabilities) backend.Capabilities
}

func (b ableStore) Open() backend.Session {
	s, can := backend.Open(b.Backend)
	return ableSession{s, b.can(can)}
}

type ableSession struct {
	backend.Session
	can backend.Capabilities
}

func (s ableSession) Capabilities() backend.Capabilities { return s.can }

// The suite puts sessions of its own around a store's. They have exactly the store's capabilities:
// otherwise a client would be tested on a different store.
func TestWrappersKeepCapabilities(t *testing.T) {
	batcher := struct{ backend.Batcher }{} // which nobody calls
	lacking := map[string]func(backend.Capabilities) backend.Capabilities{
		"nothing": func(c backend.Capabilities) backend.Capabilities {
			c.Batcher, c.Steps, c.Settle = batcher, backend.StepsReturn, func() {}
			c.WhyNot = func(backend.Kind) string { return "" }
			return c
		},
		"all but batches": func(backend.Capabilities) backend.Capabilities {
			return backend.Capabilities{Batcher: batcher}
		},
		"all": func(backend.Capabilities) backend.Capabilities { return backend.Capabilities{} },
	}
	wrappers := map[string]func(backend.Backend) backend.Backend{
		"faults":     func(b backend.Backend) backend.Backend { return newFaults(b) },
		"one permit": func(b backend.Backend) backend.Backend { return onePermitBackend{b} },
		"history":    func(b backend.Backend) backend.Backend { return history.New().Watch(b) },
	}
	for what, can := range lacking {
		store := ableStore{membackend.New(), can}
		_, bare := backend.Open(store)
		for name, wrap := range wrappers {
			_, wrapped := backend.Open(wrap(store))
			has, keeps := reflect.ValueOf(bare), reflect.ValueOf(wrapped)
			for i := range has.NumField() {
				field := has.Type().Field(i).Name
				if name == "faults" && field == "Steps" {
					if wrapped.Steps != backend.StepsMayHang {
						t.Error("the steps of a session with faults may hang, and it " +
							"doesn't say so")
					}
					continue
				}
				if has.Field(i).IsZero() != keeps.Field(i).IsZero() {
					t.Errorf("of a store that lacks %s, %s: %s is zero: %v, want %v", what, name,
						field,
						keeps.Field(i).IsZero(), has.Field(i).IsZero())
				}
			}
		}
	}
}

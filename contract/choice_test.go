package contract

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/backend"
)

// A harness is asked about every case of every part, each by a name of its own, and no store is
// made for what it leaves out.
func TestChooseNone(t *testing.T) {
	asked := make(map[string]Case)
	var tags Tags
	Run(t, Harness{
		Virtual:  true,
		NewStore: func(t *testing.T) Store { t.Errorf("a store is made"); return Store{} },
		Choose: func(c Case) bool {
			if _, twice := asked[c.String()]; twice {
				t.Errorf("two cases are called %v", c)
			}
			asked[c.String()] = c
			tags |= c.Tags
			return false
		},
	})
	var again int
	for name, c := range asked {
		if c.As != backend.Exclusive {
			again++
			if c.Tags.Has(Essential) {
				t.Errorf("%s is run again, and essential", name)
			}
		}
	}
	steps := len(stepCases) + len(kindCases)
	if n := len(asked) - again; n <= steps+len(lockerCases)+len(kindLockerCases) || again < steps {
		t.Errorf("asked about %d cases, and about %d that are run again", n, again)
	}
	if want := Essential | Exclusion | PartHangs | HoldStays | InLine | Forced; tags != want {
		t.Errorf("tags are %b, want %b", tags, want)
	}
}

// Cases are run if they are chosen, and only then, and go test calls them what they are called when
// they are chosen.
func TestChooseSome(t *testing.T) {
	chosen, run := make(map[string]bool), make(map[string]bool)
	Run(t, Harness{
		Virtual: true,
		NewStore: func(in *testing.T) Store {
			run[in.Name()] = true
			return newFakeStore(in, "").store()
		},
		Choose: func(c Case) bool {
			choose := c.Tags.Has(Exclusion) && c.Tags.Has(Essential) || c.Name == "acquire/held"
			if choose {
				chosen[strings.ReplaceAll(fmt.Sprintf("%s/%v", t.Name(), c), " ", "_")] = true
			}
			return choose
		},
	})
	if !maps.Equal(chosen, run) {
		t.Errorf("chosen were\n%q, and run\n%q",
			slices.Sorted(maps.Keys(chosen)), slices.Sorted(maps.Keys(run)))
	}
	for _, want := range []string{
		"steps/as_write/acquire/held", "model", "locker/two_clients_exclude_each_other",
		"histories/asking_the_store/forced",
	} {
		if !run[t.Name()+"/"+want] {
			t.Errorf("%s isn't run", want)
		}
	}
}

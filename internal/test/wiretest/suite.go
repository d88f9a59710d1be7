package wiretest

import (
	"os"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
)

// A Choice says which cases of the contract suite are run. Nil are all.
type Choice func(contract.Case) bool

// Suite runs the contract suite in so many processes, or those of its cases that are chosen. The
// function starts the servers, in each process its own. It leaves Harness.Choose alone.
func Suite(t *testing.T, processes int, choose Choice, start func() contract.Harness) {
	t.Helper()
	if Apart(t, processes) {
		return
	}
	h := start()
	h.Choose = func(c contract.Case) bool {
		return (choose == nil || choose(c)) && Mine(c.String())
	}
	contract.Run(t, h)
}

// Which cases a store needs that is looked at less closely than another. The quickest run has all of
// them on Redis, and in virtual time on stores in memory.

// Essential are some of each part: those in which most depends on a store.
func Essential(c contract.Case) bool { return c.Tags.Has(contract.Essential) }

// StepsAndModel are the parts for a store that is run by the code of another.
func StepsAndModel(c contract.Case) bool { return c.Part == "steps" || c.Part == "model" }

// PlainStepsAndModel are those of them that aren't run again for another kind of lock.
func PlainStepsAndModel(c contract.Case) bool {
	return StepsAndModel(c) && c.As == backend.Exclusive
}

// PartHangs are those in which a part of the store hangs.
func PartHangs(c contract.Case) bool { return c.Tags.Has(contract.PartHangs) }

// Named chooses single cases: what [contract.Case.String] begins with for each, as in "steps/acquire"
// or "locker/a second Lock". It is for a test that harms a store in a way of its own, and can say of
// each case why it holds in spite of that.
func Named(t *testing.T, names ...string) Choice {
	t.Helper()
	found := make([]bool, len(names))
	t.Cleanup(func() {
		for i, name := range names {
			if !found[i] && os.Getenv(inProcess) != "" { // where a part is asked for, many aren't found
				t.Errorf("no case begins with %q: it has another name now", name)
			}
		}
	})
	return func(c contract.Case) bool {
		named := false
		for i, name := range names {
			if strings.HasPrefix(c.String(), name) {
				named, found[i] = true, true
			}
		}
		return named
	}
}

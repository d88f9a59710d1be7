package wiretest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/contract"
	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// A Choice selects the cases of the contract suite to run. Nil selects all cases.
type Choice func(contract.Case) bool

// Suite runs the contract suite, or the chosen cases, in the given number of processes. The
// function start starts the servers of each process. The Harness that it returns must not set
// Choose.
func Suite(t *testing.T, processes int, choose Choice, start func() contract.Harness) {
	t.Helper()
	if apart.Run(t, processes) {
		return
	}
	h := start()
	h.Choose = func(c contract.Case) bool {
		return (choose == nil || choose(c)) && apart.Mine(c.String())
	}
	contract.Run(t, h)
}

// The choices below are for stores that are tested less thoroughly than others. Even the shortest
// test run includes all cases on Redis, and all cases on the in-memory stores in virtual time.

// Essential chooses, from each part, the cases that depend most on the store.
func Essential(c contract.Case) bool { return c.Tags.Has(contract.Essential) }

// StepsAndModel chooses the parts "steps" and "model", for a store that shares its code with
// another.
func StepsAndModel(c contract.Case) bool { return c.Part == "steps" || c.Part == "model" }

// PlainStepsAndModel is like StepsAndModel, but only chooses cases with exclusive locks.
func PlainStepsAndModel(c contract.Case) bool {
	return StepsAndModel(c) && c.As == backend.Exclusive
}

// PartHangs chooses the cases in which a part of the store hangs.
func PartHangs(c contract.Case) bool { return c.Tags.Has(contract.PartHangs) }

// NodesWithout returns functions for the cases of PartHangs. Each function picks a node that stores
// none of the case's locks, and makes it hang. Such a node exists, because a case uses fewer locks
// than there are nodes.
func NodesWithout(t *testing.T, nodes []*testservers.Server) (parts []func() func()) {
	t.Helper()
	for i := range nodes[1:] {
		part := fmt.Sprint("part ", i+1)
		spare := without(t, nodes, "a", part, "the holder of "+part)
		parts = append(parts, func() func() { spare.Stop(); return spare.Cont })
	}
	return parts
}

// without returns a cluster node that stores none of these keys.
func without(t *testing.T, nodes []*testservers.Server, keys ...string) *testservers.Server {
	t.Helper()
	for _, node := range nodes {
		if !slices.ContainsFunc(keys, func(key string) bool {
			_, err := testservers.Do(node.Addr, "EXISTS", key)
			return err == nil // a node without the slot answers MOVED
		}) {
			return node
		}
	}
	t.Fatalf("each node has one of the keys %q", keys)
	return nil
}

// Named chooses single cases by prefixes of [contract.Case.String], such as "steps/acquire" or
// "locker/a second Lock". It is for tests that impair a store in some special way. The prefixes
// select the cases that must pass nevertheless.
func Named(t *testing.T, names ...string) Choice {
	t.Helper()
	found := make([]bool, len(names))
	t.Cleanup(func() {
		if t.Skipped() {
			return // a server is missing
		}
		for i, name := range names {
			if !found[i] && apart.Within() {
				// in a process that apart.Run didn't start, -run may have excluded some of the
				// cases
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

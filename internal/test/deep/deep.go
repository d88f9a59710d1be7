// Package deep says how much of the tests is run: what must hold on every change, or everything.
// It is the one way for all packages to tell these apart.
//
// What is left out without it has to have a sibling that is run: another store, another variant, or
// fewer of the same. A property that only the deep run looks at could break and stay broken.
package deep

import (
	"os"
	"testing"
)

// Variable is the environment variable that asks for everything, if it is 1.
const Variable = "DISTSYNC_DEEP"

// Run says whether everything is run.
func Run() bool { return os.Getenv(Variable) == "1" }

// Only skips a test that is for the deep run alone.
func Only(t testing.TB) {
	t.Helper()
	if !Run() {
		t.Skip("only with " + Variable + "=1")
	}
}

// Of returns how many of something are enough on every change, or all.
func Of(enough, all int) int {
	if Run() {
		return all
	}
	return enough
}

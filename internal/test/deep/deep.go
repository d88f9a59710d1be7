// Package deep says how much of the tests is run: what must hold on every change, or everything.
// It is the one way for all packages to tell these apart.
//
// What is left out without it has to have a sibling that is run: another store, another variant, or
// fewer of the same. A property that only the deep run looks at could break and stay broken.
package deep

import (
	"flag"
	"os"
	"strconv"
	"testing"
)

// Variable is the environment variable that asks for everything, if it is 1.
const Variable = "DISTSYNC_DEEP"

// Run says whether everything is run. It is to be asked in tests, not before they begin: then the
// go command knows that they depend on the variable, and doesn't take results of the other depth
// for theirs.
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

// Checks has rapid check so many random sequences in a test of the deep run, where it checks a
// hundred by itself, unless the command line says how many. No other test may run beside this one.
func Checks(t testing.TB, all int) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	if checks == nil {
		t.Fatal("deep.Checks: the test doesn't use rapid")
	}
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f == checks })
	if !Run() || said {
		return
	}
	few := checks.Value.String()
	t.Cleanup(func() { checks.Value.Set(few) })
	if err := checks.Value.Set(strconv.Itoa(all)); err != nil {
		t.Fatal(err)
	}
}

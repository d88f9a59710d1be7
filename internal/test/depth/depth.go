// Package depth determines how many of the tests are run. All packages take their numbers of
// repetitions from it, and use it to skip tests.
//
// For each test that is skipped, a similar test must run: on another store, in another variant, or
// with fewer repetitions. Otherwise, a property that only deep runs check could stay broken for a
// long time.
package depth

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
)

// A Depth determines how many of the tests are run. Each depth includes the tests of the depths
// before it.
type Depth int

const (
	Quick  Depth = iota // go test ./... during development, which takes minutes
	Change              // .ci/run, which every change must pass
	Night               // .ci/deep, with all variants on all stores, which takes hours
)

// Variable is the environment variable for the depth. If it isn't set, the depth is Quick.
const Variable = "DISTSYNC_TESTS"

var values = map[string]Depth{"": Quick, "quick": Quick, "change": Change, "night": Night}

// Now returns the depth of this run. Call it while a test runs, not during initialization. Then the
// go command knows that the test depends on the variable, and doesn't reuse results of another
// depth.
func Now() Depth {
	value := os.Getenv(Variable)
	d, ok := values[value]
	if !ok {
		panic(fmt.Sprintf("%s=%s: it is quick, change or night", Variable, value))
	}
	return d
}

func (d Depth) String() string { return [...]string{"quick", "change", "night"}[d] }

// Needs skips a test in runs that are shallower than d.
func Needs(t testing.TB, d Depth) {
	t.Helper()
	if Now() < d {
		t.Skipf("only with %s=%v", Variable, d)
	}
}

// Of returns the argument that corresponds to the depth of this run.
func Of[T any](quick, change, night T) T { return [...]T{quick, change, night}[Now()] }

// Checks sets the number of random sequences that package rapid checks in a test. A number on the
// command line takes precedence. No other test may run at the same time.
func Checks(t testing.TB, quick, change, night int) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	if checks == nil {
		t.Fatal("depth.Checks: the test doesn't use rapid")
	}
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f == checks })
	if said {
		return
	}
	before := checks.Value.String()
	t.Cleanup(func() { checks.Value.Set(before) })
	if err := checks.Value.Set(strconv.Itoa(Of(quick, change, night))); err != nil {
		t.Fatal(err)
	}
}

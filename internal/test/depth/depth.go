// Package depth says how much of the tests is run. It is the one way for all packages to tell how
// many of something there should be, and which tests are left out.
//
// A test that is left out has a sibling that is run: another store, another variant, or fewer of
// the same. A property that only a deeper run looks at could break and stay broken.
package depth

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
)

// A Depth is how much is run. Each has what those before it have.
type Depth int

const (
	Quick  Depth = iota // go test ./...: minutes, for whoever changes something
	Change              // .ci/run: what every change has to pass
	Night               // .ci/deep: all variants on all stores, for hours
)

// Variable is the environment variable that says the depth. Without it, it is Quick.
const Variable = "DISTSYNC_TESTS"

var values = map[string]Depth{"": Quick, "quick": Quick, "change": Change, "night": Night}

// Now returns the depth of this run. It is to be asked in tests, not before they begin: then the go
// command knows that they depend on the variable, and doesn't take results of another depth for
// theirs.
func Now() Depth {
	value := os.Getenv(Variable)
	d, ok := values[value]
	if !ok {
		panic(fmt.Sprintf("%s=%s: it is quick, change or night", Variable, value))
	}
	return d
}

func (d Depth) String() string { return [...]string{"quick", "change", "night"}[d] }

// Needs skips a test in runs that are less deep.
func Needs(t testing.TB, d Depth) {
	t.Helper()
	if Now() < d {
		t.Skipf("only with %s=%v", Variable, d)
	}
}

// Of returns what is for the depth of this run.
func Of[T any](quick, change, night T) T { return [...]T{quick, change, night}[Now()] }

// Checks has rapid check so many random sequences in a test, unless the command line says how many.
// No other test may run beside this one.
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

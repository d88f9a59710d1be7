package wiretest

import (
	"os"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/contract"
)

// Cases are cases of the contract suite: what their names begin with, as in "steps/" or
// "locker/a_dead_holder". Those behind a minus are taken out of what is said before them, as in
// "-steps/as_". Nil are all.
type Cases []string

// Suite runs the contract suite in so many processes, or those of its cases that are named. The
// function starts the servers, in each process its own.
func Suite(t *testing.T, processes int, cases Cases, start func() contract.Harness) {
	t.Helper()
	if Apart(t, processes) {
		return
	}
	h := start()
	newStore := h.NewStore
	found := make([]bool, len(cases))
	h.NewStore = func(t *testing.T) contract.Store {
		// Nothing is said of those that are left out: what a failed run prints is cut short, and
		// should be what failed.
		_, name, _ := strings.Cut(t.Name(), "/")
		among := cases == nil
		for i, begin := range cases {
			begin, without := strings.CutPrefix(begin, "-")
			if strings.HasPrefix(name, begin) {
				among, found[i] = !without, true
			}
		}
		if !among || !Mine(t.Name()) {
			t.SkipNow()
		}
		return newStore(t)
	}
	contract.Run(t, h)
	for i, name := range cases {
		if !found[i] && os.Getenv(inProcess) != "" { // where a part is asked for, many aren't found
			t.Errorf("no case begins with %q: it has another name now", name)
		}
	}
}

// Which cases a store needs that is looked at less closely than another. The quickest run has all of
// them on Redis, and in virtual time on stores in memory.
var (
	// StepsAndModel are the parts for a store that is run by the code of another.
	StepsAndModel = Cases{"steps/", "model"}

	// Essential are some of each part: those in which most depends on a store. The steps of plain
	// locks aren't run again for each other kind.
	Essential = Cases{
		"steps/", "-steps/as_", "model", "histories/",
		"locker/two_clients_exclude", "locker/a_counter_guarded", "locker/a_dead_holder",
		"locker/a_release_between", "locker/the_subscriptions_break", "locker/waiters_cancelled",
		"locker/all_data_is_lost", "locker/an_acquisition_without_an_answer",
		"locker/a_last_release_without", "locker/order_of_arrival", "locker/the_places_of_the_dead",
		"locker/a_pair_guarded", "locker/permits_given_back", "locker/the_permits_of_the_dead",
		"locker/many_who_use_permits", "locker/each_acquisition_has_its_own_token",
	}
)

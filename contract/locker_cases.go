package contract

import (
	"slices"
	"testing"

	"github.com/seed951563bd/distsync/backend"
)

// lockerCases are the cases for a Locker on a store. Some come from what bit the users of other
// libraries: those cite the issue.
var lockerCases = slices.Concat(
	mutexCases,
	reentryCases,
	waitCases,
	replyCases,
	fragileLockerCases,
	backgroundCases,
	lossCases,
	closingCases,
	loadCases,
	holdCases,
	onceCases,
	latchLockerCases,
	holderCases,
	reasonCases,
	allCases,
	partCases,
)

// runLocker runs the cases for Lockers: those about an exclusive lock for each kind that is one, and for readers
// those that aren't about how often something is held, or by whom alone. It is the same code in dlock for all of them,
// so where time is dear only those are run again that a store's part could break.
func runLocker(t *testing.T, h Harness) {
	ofKinds, again, ofReaders, ofFair := kindLockerCases, lockerCases, readerLockerCases, inLineCases
	if !h.Virtual {
		ofKinds, again, ofReaders, ofFair = storeKindCases, storeLockerCases, storeReaderCases, storeLineCases
	}
	runCases(t, h, lockerCases)
	runCases(t, h, ofKinds)
	runKind(t, h, backend.Fenced, again)
	runKind(t, h, backend.Write, again)
	runKind(t, h, backend.Read, ofReaders)
	runKind(t, h, backend.Fair, ofFair)
}

// storeLockerCases are those that need of a store what it may do in another way for each kind of lock. That it renews
// is seen step by step.
var storeLockerCases = pick(lockerCases,
	"an uncontended Lock and Unlock", "two clients exclude each other", "something else under the name",
	"ForceUnlock by another client", "what the store says", "an owner's holds are counted",
	"the key vanishes between lock and re-entry", "an acquisition without an answer", "a last release without an answer",
	"a release between try and subscribe", "a dead holder", "the subscriptions break", "waiters cancelled at random",
	"all data is lost", "a connection that breaks", "a counter guarded only by the lock", "Acquire and re-entry",
	"several locks", "several locks, one without an answer",
	"the holder of a lock", "the locks of a store", "AtLeast",
	"a hold while a part hangs", "contenders while a part hangs", "a waiter while a part hangs", "a release while a part hangs",
)

// storeKindCases are those about a kind that aren't about what dlock alone does with leases and messages.
var storeKindCases = without(kindLockerCases,
	"places that can't be kept", "a grant that is lost", "a fixed lease of who stood in line", "a fair lock that is lost", "Close in a line",
	"Wait bounds the wait for permits", "a lost wake-up for permits", "permits that are held", "lost permits",
	"renewals of permits fail past the lease", "a thousand who wait for permits", "permits handed on for a while",
	"permits with a fixed lease", "a Locker that was lost", "a loss of permits has a reason",
)

// inLineCases are those that hold where each who waits stands in line, and nothing passes inside a client.
var inLineCases = without(lockerCases, "a release inside the client", "a waiter that leaves", "a thousand waiters")

// storeLineCases are those of them in which a store may do otherwise. What becomes of the dead is seen in a line.
var storeLineCases = without(storeLockerCases, "a dead holder")

// readerLockerCases are those that hold for readers: whom another process keeps out does so by writing.
var readerLockerCases = pick(lockerCases,
	"an uncontended Lock and Unlock", "Wait bounds the wait", "bad input", "leases below the store's limits",
	"something else under the name", "ForceUnlock by the holder's own client", "the number of an acquisition",
	"an owner's waiters re-enter together", "a watched re-entry into a fixed hold",
	"a release between try and subscribe", "a release during the attempt", "a lost wake-up", "the store refuses to notify",
	"subscribing fails", "a store that cannot notify", "a waiter that leaves", "a context that is over already",
	"the store refuses for good", "the store fails for a while",
	"an acquisition without an answer that isn't repeated", "an acquisition carried out late", "a cancelled acquisition",
	"a last release carried out late", "a last release that gets through to nobody",
	"UnlockContext with a context that is over", "a renewal carried out late",
	"an unlock that failed", "subscribing fails all the time", "renewals that hang", "renewals that take their time",
	"a question that is answered late", "TryLock beside a waiter on the same Locker", "Close while an unlock is repeated",
	"a late unlock after loss frees nobody", "Lost", "a fixed lease", "a watched lock", "a renewal fails for a while",
	"renewals fail past the lease", "a hung node delays nobody else's renewals", "a store without batches", "Do and loss", "all data is lost",
	"Close with holders", "calls after Close", "Close while a number is taken back", "Close while subscribing", "Close twice, and at once",
	"many held locks", "Release", "a Hold that is lost", "a Hold and Close",
	"the holder of a lock", "the locks of a store", "a loss has a reason",
)

// storeReaderCases are those of them in which a store may do otherwise for readers.
var storeReaderCases = pick(readerLockerCases,
	"something else under the name", "a release between try and subscribe", "all data is lost", "the holder of a lock",
)

// without returns the cases but those of these names.
func without(cases []testCase, names ...string) []testCase {
	left := slices.Clone(cases)
	for _, c := range pick(cases, names...) {
		left = slices.DeleteFunc(left, func(other testCase) bool { return other.name == c.name })
	}
	return left
}

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
	ofKinds, again, ofReaders, ofFair := kindLockerCases, lockerCases, tagged(lockerCases, forReaders), inLineCases
	if !h.Virtual {
		ofKinds = untagged(kindLockerCases, ofClient)
		again = tagged(lockerCases, differs)
		ofReaders = tagged(lockerCases, readersDiffer)
		ofFair = untagged(tagged(inLineCases, differs), seenInLine)
	}
	runCases(t, h, lockerCases)
	runCases(t, h, ofKinds)
	runKind(t, h, backend.Fenced, again)
	runKind(t, h, backend.Write, again)
	runKind(t, h, backend.Read, ofReaders)
	runKind(t, h, backend.Fair, ofFair)
}

// inLineCases are those that hold where all waiters stand in line, and nothing passes inside a client.
var inLineCases = untagged(lockerCases, notInLine)

package contract

import (
	"slices"
	"testing"

	"github.com/seed951563bd/distsync/backend"
)

// lockerCases are the cases for a Locker on a store. Cases that come from a bug in another library
// cite its issue.
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

// runLocker runs the cases for Lockers. Cases about an exclusive lock run for each exclusive kind.
// The cases about counts of holds and about exclusion don't run for readers. dlock uses the same
// code for all kinds, so in real time only the cases that depend on the store are repeated.
func runLocker(t *testing.T, h Harness) {
	ofKinds, again, ofReaders, ofFair := kindLockerCases, lockerCases,
		tagged(lockerCases, forReaders), inLineCases
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

// inLineCases are the cases that also apply to Fair locks. All waiters for a Fair lock stand in the
// store's line, and clients don't hand over a Fair lock themselves.
var inLineCases = untagged(lockerCases, notInLine)

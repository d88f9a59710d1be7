package contract

import "slices"

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
)

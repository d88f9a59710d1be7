//go:build race

package apart

// share is a factor for the number of tests that run in parallel. It is less than 1 with the race
// detector, since tests use more processor time then.
const share = 0.75

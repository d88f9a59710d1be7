//go:build race

package apart

// share is the fraction of parallel tests that run with the race detector, where tests use more
// processor time.
const share = 0.75

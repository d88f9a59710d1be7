//go:build race

package apart

// With the race detector, tests use more processor time, so fewer of them run at a time.
const share = 0.75

//go:build race

package apart

// share is the factor by which SideBySide multiplies the number of parallel tests. It is less than
// 1 with the race detector, because tests then use more processor time.
const share = 0.75

//go:build !race

package apart

const share = 1

//go:build !unix

package child

// Guard does nothing, since commands aren't guarded on this system.
func Guard() {}

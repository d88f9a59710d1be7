//go:build !unix

package child

// Guard does nothing: there is no guard here.
func Guard() {}

//go:build !linux

package main

import "runtime"

// Elsewhere nothing is pinned, and no sockets are counted.

func allowedCPUs() []int                 { return nil }
func pinned(_ int, f func() error) error { return f() }
func sockets() int                       { return 0 }
func cpuModel() string                   { return runtime.GOARCH }

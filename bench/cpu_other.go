//go:build !linux

package main

import "runtime"

// On other systems processes aren't pinned, and sockets aren't counted.

func allowedCPUs() []int                 { return nil }
func pinned(_ int, f func() error) error { return f() }
func sockets() int                       { return 0 }
func cpuModel() string                   { return runtime.GOARCH }

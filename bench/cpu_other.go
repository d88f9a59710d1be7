//go:build !linux

package main

import "runtime"

// Processes are pinned and sockets are counted only on Linux.

func allowedCPUs() []int                 { return nil }
func pinned(_ int, f func() error) error { return f() }
func sockets() int                       { return 0 }
func cpuModel() string                   { return runtime.GOARCH }

package main

import (
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// now returns the time on the clock that all processes of this machine share.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// cells are words that all processes share, one for each name. A cell is what its lock guards: it is
// read, and written a while later, by means that keep nobody apart. What is written is a version that
// never was before.
type cells []atomic.Uint64

// mapCells returns the n cells in a file, which they are to be unmapped from in the end.
func mapCells(path string, n int) (_ cells, unmap func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	size := n * int(unsafe.Sizeof(atomic.Uint64{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[0])), n), func() { unix.Munmap(mem) }, nil
}

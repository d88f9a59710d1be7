package main

import (
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// now returns the monotonic time, which is the same in all processes of this machine.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// cells is memory that all processes share, with one cell for each lock. A holder of the lock reads
// the cell, and writes it some time later, with no protection other than the lock. Each write
// stores a version that was never used before.
type cells []atomic.Uint64

// mapCells maps n cells of a file into memory. The caller must call unmap at the end.
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
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[0])), n), func() {
		unix.Munmap(mem)
	}, nil
}

package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// allowedCPUs returns the CPUs that this process may use.
func allowedCPUs() (cpus []int) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil
	}
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// pinned calls f on a thread that is pinned to the CPU. Processes that f starts are pinned too,
// since they inherit the thread's affinity.
func pinned(cpu int, f func() error) error {
	if cpu == noCPU {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread exits with the goroutine
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// sockets returns the number of open sockets of this process.
func sockets() (n int) {
	const dir = "/proc/self/fd"
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, f := range files {
		target, err := os.Readlink(filepath.Join(dir, f.Name()))
		if err == nil && strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

// cpuModel returns the processor's model name.
func cpuModel() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok &&
			strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

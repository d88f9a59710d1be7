package child

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// self is this program, also where its file has been replaced.
const self = "/proc/self/exe"

// dieWithParent lets the kernel kill a process when the thread that started it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// adoptOrphans makes this process the parent of every process below it whose own is gone.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// killAll kills all processes below the guard, and the guard.
func killAll() {
	for killBelow() > 0 {
		time.Sleep(time.Millisecond)
	}
	_ = unix.Kill(0, unix.SIGKILL) // also the last resort where there is no /proc
}

// A process is what /proc says of one.
type process struct {
	pid, parent, group int
	started            string // since boot: that and the pid say which process it is
	dead               bool
}

// killBelow kills the processes that descend from this one, and returns how many there were that could be killed. They may have
// started others meanwhile.
func killBelow() (killed int) {
	all := processes()
	below := map[int]bool{os.Getpid(): true}
	for found := true; found; {
		found = false
		for i := range all {
			if p := &all[i]; below[p.parent] && !below[p.pid] {
				below[p.pid] = true
				found = true
				if !p.dead && p.kill() == nil {
					killed++
				}
			}
		}
	}
	return killed
}

// killMembers kills the members of a process group, and returns how many there were, and how many of them couldn't be killed.
func killMembers(group int) (killed, spared int) {
	if unix.Kill(-group, unix.SIGKILL) == unix.ESRCH {
		return 0, 0 // as always, unless the command has left something behind
	}
	for _, p := range processes() {
		if p.group != group || p.dead {
			continue
		}
		if err := p.kill(); err == nil {
			killed++
		} else if errors.Is(err, os.ErrPermission) {
			spared++
		}
	}
	return killed, spared
}

// processes returns all processes that this one can see.
func processes() []process {
	entries, _ := os.ReadDir("/proc")
	var all []process
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := lookAt(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

// lookAt returns what /proc/PID/stat says: see proc_pid_stat(5).
func lookAt(pid int) (process, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	name := bytes.LastIndexByte(stat, ')') // which may itself have spaces and parentheses
	if err != nil || name < 0 {
		return process{}, false
	}
	const state, parent, group, threads, started = 0, 1, 2, 17, 19
	f := bytes.Fields(stat[name+1:])
	if len(f) <= started {
		return process{}, false
	}
	p := process{pid: pid, started: string(f[started])}
	p.parent, _ = strconv.Atoi(string(f[parent]))
	p.group, _ = strconv.Atoi(string(f[group]))
	// The first thread of a process may end before the others do.
	n, _ := strconv.Atoi(string(f[threads]))
	p.dead = bytes.ContainsAny(f[state], "ZX") && n <= 1
	return p, true
}

// kill kills the process, and no other that has been given its number since.
func (p *process) kill() error {
	h, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	defer h.Release()
	if now, ok := lookAt(p.pid); !ok || now.started != p.started {
		return os.ErrProcessDone
	}
	return h.Kill()
}

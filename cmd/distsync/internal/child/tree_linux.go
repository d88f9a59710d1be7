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

// self is the path of this program's executable. It stays valid if the file is replaced.
const self = "/proc/self/exe"

// dieWithParent makes the kernel kill a process when the thread that started it ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// adoptOrphans makes this process the parent of its descendants whose own parent exits.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// killAll kills all descendants of the guard, and then the guard.
func killAll() {
	for killBelow() > 0 {
		time.Sleep(time.Millisecond)
	}
	_ = unix.Kill(0, unix.SIGKILL) // kills the guard, and its group if there is no /proc
}

// A process is an entry of /proc.
type process struct {
	pid, parent, group int
	started            string // time since boot; together with the pid, it identifies a process
	dead               bool
}

// killBelow kills the descendants of this process and returns how many it killed. They may start
// other processes meanwhile, so one call isn't always enough.
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

// killMembers kills the members of a process group. It returns how many it killed, and how many it
// wasn't permitted to kill.
func killMembers(group int) (killed, spared int) {
	if unix.Kill(-group, unix.SIGKILL) == unix.ESRCH {
		return 0, 0 // the usual case: the command has left no process
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

// processes returns all processes that this process can see.
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

// lookAt parses /proc/PID/stat, which proc_pid_stat(5) describes.
func lookAt(pid int) (process, bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	name := bytes.LastIndexByte(stat, ')') // the name may contain spaces and parentheses
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
	// The first thread of a process may end before the other threads do.
	n, _ := strconv.Atoi(string(f[threads]))
	p.dead = bytes.ContainsAny(f[state], "ZX") && n <= 1
	return p, true
}

// kill kills the process, unless its pid belongs to another process by now.
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

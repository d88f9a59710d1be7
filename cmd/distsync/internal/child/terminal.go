//go:build unix

package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A terminal is the controlling terminal of this process. A nil terminal means that there is none,
// and its methods do nothing.
type terminal struct {
	file  *os.File
	given bool // the command's group is the foreground group
}

// openTerminal returns the controlling terminal, or nil.
func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{file: f}
}

// give makes a group the terminal's foreground group, if this process's group is in the foreground.
func (t *terminal) give(group int) {
	if t == nil {
		return
	}
	if now, err := unix.IoctlGetInt(t.fd(), unix.TIOCGPGRP); err == nil && now == unix.Getpgrp() {
		t.given = unix.IoctlSetPointerInt(t.fd(), unix.TIOCSPGRP, group) == nil
	}
}

// takeBack makes this process's group the foreground group again.
func (t *terminal) takeBack() {
	if t == nil || !t.given {
		return
	}
	t.given = false
	_ = unix.IoctlSetPointerInt(t.fd(), unix.TIOCSPGRP, unix.Getpgrp())
}

func (t *terminal) close() {
	if t != nil {
		t.file.Close()
	}
}

func (t *terminal) fd() int { return int(t.file.Fd()) }

// suspend stops this process and its group, so that the shell notices that the command was stopped.
// If no shell can continue them, suspend does nothing and returns false.
func suspend() bool {
	parent, err := unix.Getsid(unix.Getppid())
	own, err2 := unix.Getsid(0)
	if err != nil || err2 != nil || parent != own {
		return false
	}
	return unix.Kill(0, unix.SIGSTOP) == nil
}

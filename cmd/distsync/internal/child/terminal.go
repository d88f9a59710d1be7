//go:build unix

package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A terminal is the controlling terminal of this process. The methods of nil do nothing: there is none.
type terminal struct {
	file  *os.File
	given bool // to the command's group
}

// openTerminal returns the controlling terminal, or nil.
func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{file: f}
}

// give makes a group the one that may read from the terminal, if so far that is ours.
func (t *terminal) give(group int) {
	if t == nil {
		return
	}
	if now, err := unix.IoctlGetInt(t.fd(), unix.TIOCGPGRP); err == nil && now == unix.Getpgrp() {
		t.given = unix.IoctlSetPointerInt(t.fd(), unix.TIOCSPGRP, group) == nil
	}
}

// takeBack makes our group the one again.
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

// suspend stops this process and those beside it, as the terminal has stopped the command, so that the shell notices. If there is no
// shell to continue them it says so and does nothing.
func suspend() bool {
	parent, err := unix.Getsid(unix.Getppid())
	own, err2 := unix.Getsid(0)
	if err != nil || err2 != nil || parent != own {
		return false
	}
	return unix.Kill(0, unix.SIGSTOP) == nil
}

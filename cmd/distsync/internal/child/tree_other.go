//go:build unix && !linux

package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// self is this program.
var self, _ = os.Executable()

func dieWithParent(*syscall.SysProcAttr) {}

func adoptOrphans() error { return nil }

// killAll kills the guard's group, and so the guard.
func killAll() { _ = unix.Kill(0, unix.SIGKILL) }

// killBelow kills nothing: the children of a process can't be told.
func killBelow() int { return 0 }

// killMembers kills the members of a process group. How many there are isn't known.
func killMembers(group int) (killed, spared int) {
	if unix.Kill(-group, unix.SIGKILL) == nil {
		killed = 1
	}
	return killed, 0
}

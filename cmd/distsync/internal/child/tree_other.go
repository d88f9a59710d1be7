//go:build unix && !linux

package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// self is the path of this program.
var self, _ = os.Executable()

func dieWithParent(*syscall.SysProcAttr) {}

func adoptOrphans() error { return nil }

// killAll kills the guard's process group, and so the guard itself.
func killAll() { _ = unix.Kill(0, unix.SIGKILL) }

// killBelow does nothing, because this system can't list the children of a process.
func killBelow() int { return 0 }

// killMembers kills the members of a process group. It returns 1 if there were any, since it can't
// count them.
func killMembers(group int) (killed, spared int) {
	if unix.Kill(-group, unix.SIGKILL) == nil {
		killed = 1
	}
	return killed, 0
}

// Package child runs one command so that it ends when it has to, whatever becomes of the program that runs it.
//
// A command is started by a guard: this program once more, which leads the command's process group and is the command's parent. The
// program tells the guard until when the command may run, and again each time that has moved. When that instant has passed, and when
// the program is gone, be it killed or stopped, the guard kills the command and all that it has started. If the guard itself is killed,
// the kernel kills the command, and the program what is left.
//
// On Linux that is every process that descends from the command: orphans become children of the guard, and if that is gone
// of the program. Elsewhere it is the command's process group. Processes of other users, such as what sudo starts, can't be killed.
//
// A program that uses this package calls [Guard] first of all.
package child

import "syscall"

// A Status says how a command ended.
type Status struct {
	Code   int            // what it exited with; -1 if a signal killed it
	Signal syscall.Signal // that killed it, or 0
	Spared int            // how many processes of the command's group couldn't be killed, since they are somebody else's
}

// Exit returns the status as shells count: 128 and the signal's number if there was one.
func (s Status) Exit() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

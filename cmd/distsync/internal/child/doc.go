// Package child runs one command, and ensures that it ends by a deadline even if the calling
// program is killed.
//
// The program starts a guard, which is another process of the same program. The guard leads the
// command's process group and is the command's parent. The program sends the guard the command's
// deadline, and each later change to it. When the deadline has passed, or the program has ended,
// the guard kills the command and all processes that the command has started. A stopped program
// can't extend the deadline. If the guard itself is killed, the kernel kills the command, and the
// program kills the other processes.
//
// On Linux the guard kills all descendants of the command: orphans become children of the guard, or
// of the program if the guard is dead. On other systems it kills the members of the command's
// process group. Processes of other users, such as those that sudo starts, can't be killed.
//
// A program that uses this package must call [Guard] first in main.
package child

import "syscall"

// A Status describes how a command ended.
type Status struct {
	Code   int            // the exit code; -1 if a signal killed the command
	Signal syscall.Signal // the signal that killed the command, or 0
	// Spared is the number of processes in the command's group that couldn't be killed because they
	// belong to other users.
	Spared int
}

// Exit returns the status in the form that shells use: 128 plus the number of the signal that
// killed the command, or the exit code.
func (s Status) Exit() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

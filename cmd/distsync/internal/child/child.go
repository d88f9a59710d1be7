//go:build unix

package child

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Child is a running command. Its methods are safe for concurrent use.
type Child struct {
	PID    int           // of the command
	Status Status        // valid once Ended is closed
	Ended  chan struct{} // closed when the command and the rest of its group have ended

	link  *os.File // to the guard
	group int      // the guard's process ID, which is also the command's process group

	mu       sync.Mutex
	terminal *terminal
	command  int // the command's process id; 0 when it has ended
	killed   bool
	over     bool // the group has ended, so its id may be reused
}

// Start starts the program at the given path, without searching PATH for it. The command inherits
// standard input, output and error, and gets its own process group. If this process is in the
// terminal's foreground group, the new group replaces it there. The command is killed at the given
// time, which [Child.Until] can change. If the command can't be started, the error is a
// [syscall.Errno].
func Start(path string, args, env []string, until time.Time) (*Child, error) {
	if err := adoptOrphans(); err != nil {
		return nil, err
	}
	c := &Child{Ended: make(chan struct{})}
	if err := c.startGuard(path, args, env); err != nil {
		return nil, err
	}
	if c.terminal = openTerminal(); c.terminal != nil {
		// Ignore SIGTTOU, which would stop this process if it wrote to the terminal, or took the
		// terminal back, while in the background. The command doesn't inherit this, because its
		// parent is the guard, which has already been started.
		signal.Ignore(syscall.SIGTTOU)
	}
	c.terminal.give(c.group)
	c.Until(until)
	what, number, err := c.hear()
	if err == nil && what == reportStarted {
		c.PID, c.command = number, number
		go c.follow()
		return c, nil
	}
	c.end()
	if err != nil {
		return nil, fmt.Errorf("the guard ended: %w", err)
	}
	return nil, syscall.Errno(number)
}

// startGuard starts the guard in its own process group.
func (c *Child) startGuard(path string, args, env []string) error {
	syscall.ForkLock.RLock()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(pair[0])
		unix.CloseOnExec(pair[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return err
	}
	theirs := pair[1]
	defer unix.Close(theirs)
	_ = unix.SetNonblock(pair[0], true) // otherwise reads and writes would occupy a thread
	c.link = os.NewFile(uintptr(pair[0]), "link")
	argv := append([]string{guardName, strconv.Itoa(theirs), path}, args...)
	c.group, err = syscall.ForkExec(self, argv, &syscall.ProcAttr{
		Env:   env,
		Files: filesUpTo(theirs),
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		c.link.Close()
	}
	return err
}

// filesUpTo returns the file descriptors that a new process inherits: the given one, and all
// smaller ones that aren't close-on-exec. They keep their numbers.
func filesUpTo(last int) []uintptr {
	files := []uintptr{0, 1, 2}
	for fd := 3; fd < last; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil ||
			flags&unix.FD_CLOEXEC != 0 {
			files = append(files, ^uintptr(0))
		} else {
			files = append(files, uintptr(fd))
		}
	}
	return append(files, uintptr(last))
}

// Until changes the deadline of the command.
func (c *Child) Until(t time.Time) {
	// The clock is read before time.Until, so that a pause between the two makes the deadline
	// earlier, not later.
	now := clock()
	word := binary.BigEndian.AppendUint64(nil, uint64(now+time.Until(t)))
	_, _ = c.link.Write(word) // fails only if the guard and the command are dead
}

// Signal sends a signal to the command and its group. With SIGCONT it also gives the command the
// terminal again, if this process has it.
func (c *Child) Signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	if sig == syscall.SIGCONT {
		c.terminal.give(c.group)
	}
	_ = unix.Kill(-c.group, sig)
	c.signalOutsideLocked(sig)
}

// signalOutsideLocked sends a signal to the command if it has moved to another process group. For
// example, timeout(1) does that.
func (c *Child) signalOutsideLocked(sig syscall.Signal) {
	if c.command == 0 {
		return
	}
	if group, err := unix.Getpgid(c.command); err == nil && group != c.group {
		_ = unix.Kill(c.command, sig)
	}
}

// Kill kills the command and all processes that it started. It returns once the signals are sent.
// Ended is closed when the processes have ended.
func (c *Child) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.killed = true
	// Kill the command and its group first, since they could start more processes.
	c.signalOutsideLocked(unix.SIGKILL)
	_ = unix.Kill(-c.group, unix.SIGKILL)
	killBelow()
}

// hear waits for the guard's next report.
func (c *Child) hear() (what byte, number int, err error) {
	var word [9]byte
	if _, err := io.ReadFull(c.link, word[:]); err != nil {
		return 0, 0, err
	}
	return word[0], int(binary.BigEndian.Uint64(word[1:])), nil
}

// follow reads the guard's reports until the command has ended.
func (c *Child) follow() {
	defer close(c.Ended)
	for {
		what, number, err := c.hear()
		switch {
		case err != nil: // the guard was killed, alone or with its group
			c.mu.Lock()
			c.killed = true
			c.command = 0
			c.mu.Unlock()
			c.Status = Status{Code: -1, Signal: syscall.SIGKILL}
			c.end()
			return
		case what == reportStopped:
			c.stopped(syscall.Signal(number))
		case what == reportEnded:
			c.mu.Lock()
			c.command = 0
			c.mu.Unlock()
			c.Status = statusOf(syscall.WaitStatus(number))
			c.end()
			return
		}
	}
}

func statusOf(ws syscall.WaitStatus) Status {
	if ws.Signaled() {
		return Status{Code: -1, Signal: ws.Signal()}
	}
	return Status{Code: ws.ExitStatus()}
}

// stopped takes the terminal back after the command was stopped. It also stops this process if a
// shell with job control can continue it.
func (c *Child) stopped(by syscall.Signal) {
	c.mu.Lock()
	terminal := c.terminal != nil
	c.terminal.takeBack()
	c.mu.Unlock()
	if by == syscall.SIGSTOP || !terminal || suspend() {
		return
	}
	if by == syscall.SIGTSTP {
		c.Signal(syscall.SIGCONT) // no shell could continue it
	}
}

// end kills the remaining processes of the group. If the command was killed, it also kills all
// other descendants. It returns when they have ended.
func (c *Child) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	_ = unix.Kill(-c.group, unix.SIGKILL)
	bury(c.group, 0)
	killed, spared := killMembers(c.group)
	for killed > 0 || c.killed && killBelow() > 0 {
		time.Sleep(time.Millisecond)
		bury(-c.group, syscall.WNOHANG)
		killed, spared = killMembers(c.group)
	}
	c.Status.Spared = spared
	c.terminal.takeBack()
	c.terminal.close()
	c.link.Close()
}

// bury reaps children. Its first parameter selects them, as in wait4(2).
func bury(who, options int) {
	for {
		pid, err := syscall.Wait4(who, nil, options, nil)
		if !errors.Is(err, syscall.EINTR) && pid <= 0 {
			return
		}
	}
}

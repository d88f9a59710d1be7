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

// A Child is a command that runs. Its methods may be called at any time, by several goroutines.
type Child struct {
	PID    int           // the command's
	Status Status        // once Ended is closed
	Ended  chan struct{} // closed when the command has ended, and what is to end with it

	link  *os.File // to the guard
	group int      // the guard's process id, and the command's process group

	mu       sync.Mutex
	terminal *terminal
	command  int // its process id, as long as it has that
	killed   bool
	over     bool // the group is no more
}

// Start runs a command that ends at that instant at the latest, in a process group that becomes the terminal's, if this
// process is in the terminal's. The command has our standard input, output and error. The path isn't searched for. If the command
// can't be started, the error is a [syscall.Errno].
func Start(path string, args, env []string, until time.Time) (*Child, error) {
	if err := adoptOrphans(); err != nil {
		return nil, err
	}
	c := &Child{Ended: make(chan struct{})}
	if err := c.startGuard(path, args, env); err != nil {
		return nil, err
	}
	if c.terminal = openTerminal(); c.terminal != nil {
		signal.Ignore(syscall.SIGTTOU) // which is for those who take the terminal back, or write, when it isn't theirs; the command isn't started by us
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

// startGuard starts the guard, in a group of its own.
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
	_ = unix.SetNonblock(pair[0], true) // or a write, or a read, would keep a thread
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

// filesUpTo returns the files for a new process: those that are inherited, under the numbers that they have, and the last.
func filesUpTo(last int) []uintptr {
	files := []uintptr{0, 1, 2}
	for fd := 3; fd < last; fd++ {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			files = append(files, ^uintptr(0))
		} else {
			files = append(files, uintptr(fd))
		}
	}
	return append(files, uintptr(last))
}

// Until moves the instant at which the command ends at the latest.
func (c *Child) Until(t time.Time) {
	// The clock is read first, so that a pause in between makes it earlier and not later.
	now := clock()
	word := binary.BigEndian.AppendUint64(nil, uint64(now+time.Until(t)))
	_, _ = c.link.Write(word) // fails when the guard is gone, and then so is the command
}

// Signal sends a signal to the command and its group. To continue the command gives it the terminal again, if that is ours.
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

// signalOutsideLocked sends a signal to the command if it has left the group, as timeout(1) does.
func (c *Child) signalOutsideLocked(sig syscall.Signal) {
	if c.command == 0 {
		return
	}
	if group, err := unix.Getpgid(c.command); err == nil && group != c.group {
		_ = unix.Kill(c.command, sig)
	}
}

// Kill kills the command and all that it has started: it sends the signals before it returns. Ended tells when they are gone.
func (c *Child) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.killed = true
	// First those who could start others.
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

// follow listens to the guard until the command has ended.
func (c *Child) follow() {
	defer close(c.Ended)
	for {
		what, number, err := c.hear()
		switch {
		case err != nil: // the guard was killed, with the group or alone
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

// stopped does what is to be done when the command has been stopped: the same, where there is a shell that controls jobs.
func (c *Child) stopped(by syscall.Signal) {
	c.mu.Lock()
	terminal := c.terminal != nil
	c.terminal.takeBack()
	c.mu.Unlock()
	if by == syscall.SIGSTOP || !terminal || suspend() {
		return
	}
	if by == syscall.SIGTSTP {
		c.Signal(syscall.SIGCONT) // nobody else could
	}
}

// end ends the group and, if the command was killed, everything below it, and returns when they are gone.
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

// bury waits for children of ours that are dead, or will be.
func bury(who, options int) {
	for {
		pid, err := syscall.Wait4(who, nil, options, nil)
		if !errors.Is(err, syscall.EINTR) && pid <= 0 {
			return
		}
	}
}

//go:build unix

package child

import (
	"encoding/binary"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardName is the name of a guard process, as shown by ps(1).
const guardName = "distsync-guard"

// The messages that a guard sends. Each of them carries a number, which is described here.
const (
	reportStarted = 's' // the command's process id
	reportFailed  = 'f' // the errno of the failed attempt to start the command
	reportStopped = 'p' // the signal that stopped the command
	reportEnded   = 'e' // the command's wait status
)

// Guard runs the guard if [Start] started this process as one, and then never returns. In any other
// process it returns immediately. Call it first in main.
func Guard() {
	if len(os.Args) < 4 || os.Args[0] != guardName {
		return
	}
	socket, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return
	}
	runtime.LockOSThread() // the kernel kills the command when the thread that started it ends
	ignoreSignals()
	_ = adoptOrphans()
	unix.CloseOnExec(socket)
	_ = unix.SetNonblock(socket, true) // deadlines need it
	g := &guard{link: os.NewFile(uintptr(socket), "link")}
	if g.await() != nil {
		os.Exit(1)
	}
	g.start(os.Args[2], os.Args[3:])
	go func() {
		for g.await() == nil {
		}
		g.over.Store(true)
		killAll()
	}()
	g.reap()
	select {} // wait until killAll or the program kills the process group
}

// ignoreSignals makes the guard discard signals that are sent to its process group, to which the
// command also belongs. It catches the signals instead of ignoring them, since the command would
// also ignore any signal that the guard ignores.
func ignoreSignals() {
	nobody := make(chan os.Signal, 1)
	for s := syscall.Signal(1); s < 65; s++ {
		if !signal.Ignored(s) {
			signal.Notify(nobody, s)
		}
	}
}

// A guard is the state of a guard process.
type guard struct {
	link    *os.File    // the connection to the program
	command int         // the command's process id
	over    atomic.Bool // whether the deadline has passed or the program has ended
}

// await waits until the program sends a new deadline for the command. It returns an error if the
// previous deadline passes or the program ends.
func (g *guard) await() error {
	var word [8]byte
	if _, err := io.ReadFull(g.link, word[:]); err != nil {
		return err
	}
	// time.Now is called before clock, so that a pause between the two makes the deadline earlier,
	// not later.
	now := time.Now()
	left := time.Duration(binary.BigEndian.Uint64(word[:])) - clock()
	return g.link.SetReadDeadline(now.Add(left))
}

// report sends a report to the program. The report is dropped if the program has ended.
func (g *guard) report(what byte, number int) {
	_, _ = g.link.Write(binary.BigEndian.AppendUint64([]byte{what}, uint64(number)))
}

// start starts the command in the guard's process group.
func (g *guard) start(path string, args []string) {
	attr := &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: new(syscall.SysProcAttr),
	}
	dieWithParent(attr.Sys)
	pid, err := syscall.ForkExec(path, args, attr)
	if err != nil {
		errno, _ := err.(syscall.Errno)
		g.report(reportFailed, int(errno))
		select {}
	}
	g.command = pid
	g.report(reportStarted, pid)
}

// reap reaps the command and orphans until no child is left. It reports to the program when the
// command stops or ends.
func (g *guard) reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR || err == nil && pid != g.command:
		case err != nil:
			return
		case g.over.Load(): // no report is needed, since the program notices the guard's end
		case ws.Stopped():
			g.report(reportStopped, int(ws.StopSignal()))
		default:
			g.report(reportEnded, int(ws))
		}
	}
}

// clock returns the monotonic time, which is the same in all processes.
func clock() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}

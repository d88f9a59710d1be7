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

// guardName is what a guard finds itself called, and what ps shows.
const guardName = "distsync-guard"

// What a guard reports: each with a number.
const (
	reportStarted = 's' // the command's process id
	reportFailed  = 'f' // why it couldn't be started: an errno
	reportStopped = 'p' // by which signal
	reportEnded   = 'e' // its wait status
)

// Guard returns at once, but in a process that [Start] has started: there it is what that process is for, and never returns.
// It must be the first thing that main calls.
func Guard() {
	if len(os.Args) < 4 || os.Args[0] != guardName {
		return
	}
	socket, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return
	}
	runtime.LockOSThread() // the command dies with the thread that has started it
	ignoreSignals()
	_ = adoptOrphans()
	unix.CloseOnExec(socket)
	_ = unix.SetNonblock(socket, true) // for deadlines
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
	select {} // the end of this process is the end of the group
}

// ignoreSignals lets those that are meant for the command, whose group this process leads, do nothing here. Signals that are really
// ignored would be in the command, too.
func ignoreSignals() {
	nobody := make(chan os.Signal, 1)
	for s := syscall.Signal(1); s < 65; s++ {
		if !signal.Ignored(s) {
			signal.Notify(nobody, s)
		}
	}
}

// A guard is what a guard's process knows.
type guard struct {
	link    *os.File    // to the program
	command int         // its process id
	over    atomic.Bool // all are to end: what the command does doesn't matter any more
}

// await waits for the next word of until when the command may run. It fails when the last has come to pass, or the program is gone.
func (g *guard) await() error {
	var word [8]byte
	if _, err := io.ReadFull(g.link, word[:]); err != nil {
		return err
	}
	// The clock is read last, so that a pause in between makes it earlier and not later.
	now := time.Now()
	left := time.Duration(binary.BigEndian.Uint64(word[:])) - clock()
	return g.link.SetReadDeadline(now.Add(left))
}

// report tells the program. If that is gone there is nobody to tell.
func (g *guard) report(what byte, number int) {
	_, _ = g.link.Write(binary.BigEndian.AppendUint64([]byte{what}, uint64(number)))
}

// start starts the command, in the group of the guard.
func (g *guard) start(path string, args []string) {
	attr := &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: new(syscall.SysProcAttr)}
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

// reap waits for the command, and for orphans, until there is nobody left to wait for.
func (g *guard) reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR || err == nil && pid != g.command:
		case err != nil:
			return
		case g.over.Load(): // the program shall take the end of the guard for the end
		case ws.Stopped():
			g.report(reportStopped, int(ws.StopSignal()))
		default:
			g.report(reportEnded, int(ws))
		}
	}
}

// clock returns the time of a clock that is the same in all processes.
func clock() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}

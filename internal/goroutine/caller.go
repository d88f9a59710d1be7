package goroutine

import (
	"fmt"
	"runtime"
	"strings"
)

const module = "github.com/seed951563bd/distsync/"

// Caller returns the file and line of the innermost caller outside of this module, such as
// "/src/orders/ship.go:42", or "" if there is none. Tests and examples count as outside. Caller
// takes about a microsecond.
func Caller() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		frame, more := frames.Next()
		if frame.PC != 0 && !own(frame) {
			return fmt.Sprintf("%s:%d", frame.File, frame.Line)
		}
		if !more {
			return ""
		}
	}
}

// own reports whether a frame belongs to this module or to the Go runtime, which is at the bottom
// of each stack.
func own(frame runtime.Frame) bool {
	if strings.HasSuffix(frame.File, "_test.go") {
		return false
	}
	inside, ok := strings.CutPrefix(frame.Function, module)
	return ok && !strings.HasPrefix(inside, "examples/") ||
		strings.HasPrefix(frame.Function, "runtime.")
}

package goroutine

import (
	"fmt"
	"runtime"
	"strings"
)

const module = "github.com/seed951563bd/distsync/"

// Caller returns the file and line of the innermost call on the stack that isn't this module's own,
// as "/src/orders/ship.go:42", or nothing if there is none. Tests and examples are callers of what
// they use. It takes about a microsecond.
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

// own says whether a frame is one that a caller of locks doesn't know: of this module, or of the Go
// runtime, which is below all.
func own(frame runtime.Frame) bool {
	if strings.HasSuffix(frame.File, "_test.go") {
		return false
	}
	inside, ok := strings.CutPrefix(frame.Function, module)
	return ok && !strings.HasPrefix(inside, "examples/") || strings.HasPrefix(frame.Function, "runtime.")
}

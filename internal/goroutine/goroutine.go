// Package goroutine identifies goroutines, and the code that calls this module.
package goroutine

import (
	"bytes"
	"runtime"
	"strconv"
)

// ID returns the number of the calling goroutine. No other goroutine of the process ever has the
// same number. ID reads it from the first line of a stack trace, "goroutine 18 [running]:", which
// takes microseconds.
func ID() uint64 {
	var buf [64]byte
	line := buf[:runtime.Stack(buf[:], false)]
	line = bytes.TrimPrefix(line, []byte("goroutine "))
	number, _, _ := bytes.Cut(line, []byte(" "))
	id, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil {
		panic("goroutine: the stack trace does not begin with a number: " + string(buf[:]))
	}
	return id
}

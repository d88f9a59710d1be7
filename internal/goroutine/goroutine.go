// Package goroutine tells goroutines apart.
package goroutine

import (
	"bytes"
	"runtime"
	"strconv"

	"github.com/petermattis/goid"
)

// ID returns the number of the calling goroutine, which no other has as long as the process lives.
func ID() uint64 {
	if fast {
		return uint64(goid.Get())
	}
	return parsed()
}

// goid reads the runtime's own layout, which may change with any release of Go. It costs 2 ns where
// parsing a stack trace costs microseconds, so it is used where both agree.
var fast = agree()

func agree() bool {
	same := make(chan bool)
	go func() { same <- uint64(goid.Get()) == parsed() }()
	return uint64(goid.Get()) == parsed() && <-same
}

// parsed takes the number from the first line of a stack trace, "goroutine 18 [running]:".
func parsed() uint64 {
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

//go:build unix

package postgresbackend

import (
	"crypto/tls"
	"net"
	"syscall"
)

// silent reports whether an idle connection is still open and has received no data. A server that
// shuts down or ends a session sends a message or closes the connection. A request sent after that
// would get no answer, and the caller couldn't know whether it was carried out. The check doesn't
// take a round trip.
func silent(conn net.Conn) bool {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return true // there is no file descriptor to check
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	stands := false
	// Use Control instead of Read, which would wait for a goroutine of pgx that may still be
	// reading.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		stands = err == syscall.EAGAIN || err == syscall.EINTR
	})
	return stands && err == nil
}

//go:build unix

package postgresbackend

import (
	"crypto/tls"
	"net"
	"syscall"
)

// silent says whether nothing has come on a connection that nobody uses, and it still stands. When
// a server ends, or ends a session, there is a message or the end of the stream: what is sent then
// would have no answer, and nobody would know whether it was carried out. It costs no round trip.
func silent(conn net.Conn) bool {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return true // it can't be seen
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	stands := false
	// Not Read: pgx may have left a goroutine that reads, for which that would wait.
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		stands = err == syscall.EAGAIN || err == syscall.EINTR
	})
	return stands && err == nil
}

package testservers

import (
	"bufio"
	"net"
	"strings"
	"time"
)

// awaitBus waits until a message published on any node of a cluster reaches subscribers on all
// nodes. Even if all nodes agree on the owners of slots, some might not be connected to each other
// yet.
func awaitBus(t TB, nodes []*Server) {
	t.Helper()
	for _, node := range nodes {
		conn, err := net.Dial("tcp", node.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("SUBSCRIBE bus\r\n")); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(conn)
		for _, other := range nodes {
			Until(t, "what is published on "+other.Addr+" reaches "+node.Addr, func() bool {
				other.Do("PUBLISH", "bus", other.Addr)
				conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return false
					}
					if strings.TrimSpace(line) == other.Addr {
						return true
					}
				}
			})
		}
	}
}

package faults_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"

	"github.com/seed951563bd/distsync/contract/faults"
)

// For a while the proxy refuses the client's connections. Afterwards the client reaches the server
// again.
func Example() {
	server, count := startCounter()
	defer server.Close()
	proxy, err := faults.NewProxy(server.Addr().String(), faults.Bytes)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer proxy.Close()
	ask := func() (string, error) {
		conn, err := net.Dial("tcp", proxy.Addr())
		if err != nil {
			return "", err
		}
		defer conn.Close()
		fmt.Fprintln(conn, "add 1")
		return bufio.NewReader(conn).ReadString('\n')
	}

	answer, err := ask()
	fmt.Printf("%q %v\n", answer, err)
	proxy.Refuse(true)
	_, err = ask()
	fmt.Println("refused:", err != nil)
	proxy.Refuse(false)
	answer, err = ask()
	fmt.Printf("%q %v\n", answer, err)
	fmt.Println("the server:", count())
	// Output:
	// "ok\n" <nil>
	// refused: true
	// "ok\n" <nil>
	// the server: 2
}

// A client that doesn't get a reply cannot know whether its request was carried out.
func ExampleProxy_LoseReply() {
	server, count := startCounter()
	defer server.Close()
	proxy, err := faults.NewProxy(server.Addr().String(), faults.Bytes)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer proxy.Close()

	lost := proxy.LoseReply(func(r faults.Request) bool {
		return strings.HasPrefix(string(r.Bytes), "add 1")
	})
	conn, err := net.Dial("tcp", proxy.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Fprintln(conn, "add 1")
	_, err = bufio.NewReader(conn).ReadString('\n')
	<-lost
	fmt.Println("the client:", err)
	fmt.Println("the server:", count())
	// Output:
	// the client: EOF
	// the server: 1
}

// startCounter starts a server that counts the lines that it gets, and answers each.
func startCounter() (server net.Listener, count func() int) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	counts := make(chan int, 1)
	counts <- 0
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					counts <- <-counts + 1
					fmt.Fprintln(conn, "ok")
				}
			}()
		}
	}()
	return server, func() int { n := <-counts; counts <- n; return n }
}

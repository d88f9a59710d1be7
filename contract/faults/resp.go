package faults

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A respLink is the state of a RESP connection. Replies come in the order of the requests.
type respLink struct {
	*link
	subscribes bool // notifications may arrive, which aren't replies
	requests   int
	replies    int
	caught     map[int]*trap // by the number of the reply
	holding    *trap         // collects all requests that arrive, until the trap opens
}

func newRESP(l *link) (requests, replies parser) {
	r := &respLink{link: l, caught: make(map[int]*trap)}
	return respRequests{r, bufio.NewReader(l.client)}, respReplies{r, bufio.NewReader(l.server)}
}

type respRequests struct {
	*respLink
	r *bufio.Reader
}

func (s respRequests) read() ([]byte, error) {
	unit, err := readValue(s.r, nil)
	if err == nil && !bytes.HasPrefix(unit, []byte("*")) || bytes.HasPrefix(unit, []byte("*0")) {
		return nil, fmt.Errorf("%w: %q is no request", errProtocol, unit)
	}
	return unit, err
}

func (s respRequests) pass(unit []byte) {
	words := requestWords(unit)
	s.requests++
	if s.holding != nil && !s.holding.open {
		s.holding.pass(unit)
		return
	}
	// The suffix also matches "unsubscribe", which clients send only on connections that have
	// already subscribed.
	s.subscribes = s.subscribes || strings.HasSuffix(strings.ToLower(words[0]), "subscribe")
	t := s.spring(Request{Words: words}, !s.subscribes)
	if t != nil {
		s.caught[s.requests] = t
	}
	switch {
	case t != nil && t.blow == LoseRequest:
		s.toServer.lose(t)
	case t != nil && t.blow == HoldRequest:
		s.holding = t
		t.silent = s.subscribes
		s.toServer.hold(t, unit)
	default:
		s.toServer.pass(unit)
	}
}

type respReplies struct {
	*respLink
	r *bufio.Reader
}

func (s respReplies) read() ([]byte, error) { return readValue(s.r, nil) }

func (s respReplies) pass(unit []byte) {
	if unit[0] != '>' && !s.subscribes {
		s.replies++
	}
	t := s.caught[s.replies]
	switch {
	case t != nil && t.blow == LoseReply:
		s.toClient.lose(t)
		return
	case t != nil:
		t.answered()
	}
	s.toClient.pass(unit)
}

// readValue reads a value, in either version of the protocol. It appends the bytes of the value to
// the given slice, and returns the result.
func readValue(r *bufio.Reader, read []byte) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	read = append(read, line...)
	kind, text := line[0], strings.TrimRight(string(line[1:]), "\r\n")
	values := 0
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		return read, nil
	case '$', '=', '!':
		n, err := length(text)
		if err != nil || n < 0 {
			return read, err
		}
		start := len(read)
		read = append(read, make([]byte, n+len("\r\n"))...)
		_, err = io.ReadFull(r, read[start:])
		return read, err
	case '*', '~', '>':
		values, err = length(text)
	case '%':
		values, err = length(text)
		values *= 2
	case '|': // attributes, which are pairs of values, and then the value that they describe
		values, err = length(text)
		values = 2*values + 1
	default:
		return nil, fmt.Errorf("%w: %q", errProtocol, line)
	}
	for ; err == nil && values > 0; values-- {
		read, err = readValue(r, read)
	}
	return read, err
}

func length(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%w: a length of %q", errProtocol, text)
	}
	return n, nil
}

// requestWords returns the words of a request, which is an array of bulk strings.
func requestWords(unit []byte) (words []string) {
	_, rest, _ := strings.Cut(string(unit), "\r\n")
	for rest != "" {
		header, more, _ := strings.Cut(rest, "\r\n")
		n, err := strconv.Atoi(strings.TrimPrefix(header, "$"))
		if err != nil || n < 0 || n > len(more) {
			return append(words, "")
		}
		words = append(words, more[:n])
		rest = strings.TrimPrefix(more[n:], "\r\n")
	}
	return words
}

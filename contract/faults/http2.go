package faults

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// An http2Link is the state of an HTTP/2 connection. Frames are passed on unchanged.
type http2Link struct {
	*link
	streams map[uint32]*stream
}

// A stream is an HTTP/2 stream, which carries one gRPC call.
type stream struct {
	headers []byte // compressed; nil when they are complete
	method  string
	message []byte // the beginning of the next message
	lose    *trap
	holding *trap // collects all data that arrives, until the trap opens
}

func newHTTP2(l *link) (requests, replies parser) {
	h := &http2Link{link: l, streams: make(map[uint32]*stream)}
	return &http2Requests{
			h, frames{r: bufio.NewReader(l.client), preface: len(http2.ClientPreface)},
			hpack.NewDecoder(4096, nil),
		},
		&http2Replies{h, frames{r: bufio.NewReader(l.server)}}
}

// frames reads the frames of a connection.
type frames struct {
	r       *bufio.Reader
	preface int // number of bytes before the first frame
	header  http2.FrameHeader
}

func (s *frames) read() ([]byte, error) {
	if n := s.preface; n > 0 {
		// treat the preface like a SETTINGS frame, which belongs to no stream either
		s.preface, s.header = 0, http2.FrameHeader{Type: http2.FrameSettings}
		unit := make([]byte, n)
		if _, err := io.ReadFull(s.r, unit); err != nil {
			return nil, err
		}
		if string(unit) != http2.ClientPreface {
			return nil, fmt.Errorf("%w: it begins with %q", errProtocol, unit)
		}
		return unit, nil
	}
	var err error
	var unit bytes.Buffer
	if s.header, err = http2.ReadFrameHeader(io.TeeReader(s.r, &unit)); err != nil {
		return nil, err
	}
	_, err = io.CopyN(&unit, s.r, int64(s.header.Length))
	return unit.Bytes(), err
}

// parse returns the contents of a frame.
func parse(unit []byte) http2.Frame {
	f, err := http2.NewFramer(nil, bytes.NewReader(unit)).ReadFrame()
	if err != nil {
		return nil // a CONTINUATION frame, or an invalid frame that the receiver will report
	}
	return f
}

type http2Requests struct {
	*http2Link
	frames
	headers *hpack.Decoder // HPACK requires one decoder for all headers of a connection
}

func (s *http2Requests) pass(unit []byte) {
	id := s.header.StreamID
	st := s.streams[id]
	switch s.header.Type {
	case http2.FrameHeaders:
		if st == nil {
			st = new(stream)
			s.streams[id] = st
		}
		if f, ok := parse(unit).(*http2.HeadersFrame); ok {
			s.learn(st, f.HeaderBlockFragment())
		}
	case http2.FrameContinuation:
		if st != nil {
			s.learn(st, unit[frameHeaderLen:])
		}
	case http2.FrameData:
		if st != nil {
			s.data(st, unit)
			return
		}
	case http2.FrameRSTStream:
		if st != nil && st.holding != nil {
			return // if it were passed on, the server would cancel the held call
		}
		delete(s.streams, id)
	}
	s.toServer.pass(unit)
}

const frameHeaderLen = 9

// learn extracts the method from the headers of a stream.
func (s *http2Requests) learn(st *stream, fragment []byte) {
	st.headers = append(st.headers, fragment...)
	// END_HEADERS is the same bit in CONTINUATION frames
	if !s.header.Flags.Has(http2.FlagHeadersEndHeaders) {
		return
	}
	fields, _ := s.headers.DecodeFull(st.headers)
	st.headers = nil
	for _, f := range fields {
		if f.Name == ":path" {
			st.method = f.Value
		}
	}
}

// data passes a data frame on, unless a trap loses it or holds it back. A trap that holds a request
// back also receives the later frames of the stream.
func (s *http2Requests) data(st *stream, unit []byte) {
	if st.holding != nil && !st.holding.open {
		st.holding.pass(unit)
		return
	}
	f, ok := parse(unit).(*http2.DataFrame)
	if !ok {
		s.toServer.pass(unit)
		return
	}
	st.message = append(st.message, f.Data()...)
	for {
		message, ok := st.next()
		if !ok {
			s.toServer.pass(unit)
			return
		}
		t := s.spring(Request{Method: st.method, Message: message}, st.lose == nil)
		switch {
		case t == nil:
		case t.blow == LoseRequest:
			s.toServer.lose(t)
			return
		case t.blow == HoldRequest:
			st.holding = t
			s.toServer.hold(t, unit)
			return
		default:
			st.lose = t
		}
	}
}

// next returns the next gRPC message if it is complete. A flag and the length precede each message.
func (st *stream) next() (message []byte, ok bool) {
	const prefix = 5
	if len(st.message) < prefix {
		return nil, false
	}
	end := prefix + int(binary.BigEndian.Uint32(st.message[1:]))
	if len(st.message) < end {
		return nil, false
	}
	message, st.message = st.message[prefix:end], st.message[end:]
	return message, true
}

type http2Replies struct {
	*http2Link
	frames
}

func (s *http2Replies) pass(unit []byte) {
	st := s.streams[s.header.StreamID]
	switch s.header.Type {
	case http2.FrameHeaders, http2.FrameData, http2.FrameRSTStream:
		if st != nil && st.lose != nil {
			s.toClient.lose(st.lose)
			return
		}
		if st != nil && st.holding != nil {
			st.holding.answered()
		}
		if s.header.Type == http2.FrameRSTStream || s.header.Flags.Has(http2.FlagDataEndStream) {
			// END_STREAM is the same bit in HEADERS frames
			delete(s.streams, s.header.StreamID)
		}
	}
	s.toClient.pass(unit)
}

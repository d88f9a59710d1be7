package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// lockJSON is a lock in JSON.
type lockJSON struct {
	nameJSON
	Kind    string       `json:"kind"`
	Holders []holderJSON `json:"holders"`
	More    int          `json:"more,omitempty"` // the number of holders that aren't listed
	Line    []string     `json:"line"`
	Limit   int          `json:"limit,omitempty"`
}

// nameJSON is a lock's name in JSON. Base64 is set if the name isn't valid UTF-8.
type nameJSON struct {
	Name   string `json:"name"`
	Base64 []byte `json:"name_base64,omitempty"`
}

// holderJSON is a holder of a lock.
type holderJSON struct {
	ID        string   `json:"id"`
	Client    string   `json:"client"`
	Kind      string   `json:"kind"`
	Count     int      `json:"count"`
	Remaining *seconds `json:"remaining"` // null if the hold has no expiry
	Kept      bool     `json:"kept,omitempty"`
}

// seconds is a duration that is encoded in JSON as a number of seconds.
type seconds float64

func jsonName(name string) nameJSON {
	n := nameJSON{Name: name}
	if !utf8.ValidString(name) {
		n.Base64 = []byte(name)
	}
	return n
}

func jsonLock(l *dlock.LockInfo) lockJSON {
	j := lockJSON{
		nameJSON: jsonName(l.Name), Kind: kindOf(l).String(), Holders: jsonHolders(l.Holders),
		More: l.More, Line: l.Line, Limit: l.Limit,
	}
	if j.Line == nil {
		j.Line = []string{}
	}
	return j
}

func jsonHolders(holders []dlock.Holder) []holderJSON {
	all := make([]holderJSON, len(holders))
	for i, h := range holders {
		all[i] = holderJSON{
			ID: h.ID, Client: h.Client, Kind: h.Kind.String(), Count: h.Count,
			Remaining: jsonRemaining(h.Remaining), Kept: h.Kept,
		}
	}
	return all
}

func jsonRemaining(d time.Duration) *seconds {
	if d < 0 {
		return nil
	}
	s := seconds(d.Seconds())
	return &s
}

// kindOf returns the kind of a lock. For a read-write lock, it returns the kind of the side that is
// held.
func kindOf(l *dlock.LockInfo) backend.Kind {
	if len(l.Holders) > 0 {
		return l.Holders[0].Kind
	}
	return l.Kind
}

// printJSON prints a value as one line of JSON. It escapes characters that a terminal would
// interpret.
func printJSON(w io.Writer, value any) error {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return err
	}
	var safe strings.Builder
	for _, r := range strings.TrimSuffix(b.String(), "\n") {
		if r == ' ' || !hidden(r) {
			safe.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&safe, `\u%04x`, unit)
		}
	}
	_, err := fmt.Fprintln(w, safe.String())
	return err
}

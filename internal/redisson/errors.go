package redisson

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// errNoMemory is wrapped in the error of a step that the server has no memory for.
var errNoMemory = errors.New("the server is out of memory")

// ServerError gives an error its kind, where text is the server's error reply inside it. Which it is
// can only be told by the text: its first word, and whether a script was already running.
//
// An error raised inside a script is [backend.Unknown], since the script may have written before:
// without permission for the channel a release has already deleted the key. The exceptions are
// errors that can only come before the script's first write.
func ServerError(text string, err error) error {
	code, inScript := parseError(text)
	switch {
	case code == "WRONGTYPE":
		// In all the scripts the first command that minds the type comes before any that writes.
		return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("%w: %w", backend.ErrConflict, err)}
	case code == "OOM":
		return &backend.Error{Kind: backend.Retry, Err: fmt.Errorf("%w: %w", errNoMemory, err)}
	case beforeFirstWrite[code]:
		return &backend.Error{Kind: backend.Retry, Err: err}
	case inScript:
		return &backend.Error{Kind: backend.Unknown, Err: err}
	default:
		return &backend.Error{Kind: beforeScript[code], Err: err}
	}
}

// beforeFirstWrite are the errors with which a server answers a script's first write or none: it
// fails no script for them that has written already. Scripts without a declaration of what they
// do, as these are, meet them only inside.
var beforeFirstWrite = map[string]bool{
	"READONLY":   true,
	"NOREPLICAS": true,
	"MISCONF":    true,
}

// beforeScript are the errors that concern the command itself. Others are Unknown.
var beforeScript = map[string]backend.ErrorKind{
	"LOADING":     backend.Retry,
	"MASTERDOWN":  backend.Retry,
	"CLUSTERDOWN": backend.Retry,
	"TRYAGAIN":    backend.Retry,
	"BUSY":        backend.Retry,
	"MOVED":       backend.Retry,
	"ASK":         backend.Retry,
	maxClients:    backend.Retry,

	"NOAUTH":    backend.Refused,
	"WRONGPASS": backend.Refused,
	"NOPERM":    backend.Refused,
	"CROSSSLOT": backend.Refused,
	pointless:   backend.Refused,
}

// These stand for errors that have no code of their own.
const (
	maxClients = "max number of clients"
	pointless  = "pointless"
)

// pointlessError is how a server answers that will never carry out a script, or never lets the client
// as it is configured come to that: without the commands that run scripts, without the database, or
// without the slots of a cluster.
var pointlessError = regexp.MustCompile("^ERR (?:unknown command ['`](?i:evalsha|eval)['`]|DB index is out of range|" +
	"SELECT is not allowed in cluster mode|This instance has cluster support disabled)")

// wrappedError is how servers before 7.0, and miniredis, report what a command inside a script was
// answered: with the code far inside. Of these only errors are understood that also those servers
// raise at a script's first write, or before; the rest stays an ERR.
var wrappedError = regexp.MustCompile(`^ERR Error (?:running script \(call to f_[0-9a-f]{40}\)|compiling script \(new function\)): ` +
	`(?:(?:@?user_script)?: ?\d+: )+-?(WRONGTYPE|READONLY|OOM) `)

// parseError finds an error's code, and whether the error was raised inside a script. It errs on
// the side of inside.
func parseError(text string) (code string, inScript bool) {
	if m := wrappedError.FindStringSubmatch(text); m != nil {
		return m[1], true
	}
	if strings.HasPrefix(text, "ERR "+maxClients) {
		return maxClients, false
	}
	if pointlessError.MatchString(text) {
		return pointless, false
	}
	code, rest, _ := strings.Cut(text, " ")
	return code, strings.Contains(rest, "script") && code != "BUSY"
}

package redisson

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// errNoMemory is wrapped by the error of a step that failed because the server is out of memory.
var errNoMemory = errors.New("the server is out of memory")

// errDenied is wrapped by the error of a script that the server didn't allow to use a command or a
// key. Running the script again would fail the same way (see denials).
var errDenied = errors.New("the server refuses a part of the step")

// ServerError adds the kind to err, an error whose text is the server's error reply. The kind
// depends only on the first word of text, and on whether text says that the error came from inside
// a script.
//
// An error from inside a script is [backend.Unknown], since the script may already have written
// something. For example, a release without permission for the channel deletes the key before it
// fails. The exceptions are errors that occur only before the script's first write.
func ServerError(text string, err error) error {
	code, inScript := parseError(text)
	switch {
	case code == "WRONGTYPE":
		// In every script, the first command that depends on the key's type comes before all
		// writes.
		return &backend.Error{
			Kind: backend.Refused, Err: fmt.Errorf("%w: %w", backend.ErrConflict, err),
		}
	case code == "OOM":
		return &backend.Error{Kind: backend.Retry, Err: fmt.Errorf("%w: %w", errNoMemory, err)}
	case code == pointless:
		err = fmt.Errorf("%w (%s)", err, adviceOn(text, pointlessErrors))
		return &backend.Error{Kind: backend.Refused, Err: err}
	case beforeFirstWrite[code]:
		return &backend.Error{Kind: backend.Retry, Err: err}
	case inScript:
		if advice := adviceOn(text, deniedErrors); advice != "" {
			err = fmt.Errorf("%w: %w (%s)", errDenied, err, advice)
		}
		return &backend.Error{Kind: backend.Unknown, Err: err}
	default:
		return &backend.Error{Kind: beforeScript[code], Err: err}
	}
}

// beforeFirstWrite contains the codes of errors that a server raises only at a script's first
// write, never at a later one. Our scripts don't declare whether they write, so the server can't
// raise these errors before it runs a script.
var beforeFirstWrite = map[string]bool{
	"READONLY":   true,
	"NOREPLICAS": true,
	"MISCONF":    true,
}

// beforeScript contains the codes of errors that a server raises only before it runs a script. It
// maps each code to the kind of the error. All other errors are Unknown.
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
}

// These constants serve as codes for errors whose text contains no code.
const (
	maxClients = "max number of clients"
	pointless  = "pointless"
)

// pointlessErrors match errors that a command would get again each time it is repeated. Some come
// from a server that doesn't support scripts or subscriptions, lacks the client's database, or
// isn't a cluster. Others come from a proxy in front of the server, for example one that checks
// scripts and rejects some of them. In all these cases, the command did nothing.
var pointlessErrors = []advisedError{
	{regexp.MustCompile("^(?:ERR )?(?:unknown|unsupported) command ['`](?i:evalsha|eval)['`]" +
		"|^NOPERM .*'(?i:evalsha|eval)'|^ERR command (?i:evalsha|eval) not support"),
		"locks need a server that runs Lua scripts, and any proxy before it must let EVAL and " +
			"EVALSHA pass"},
	{regexp.MustCompile("^(?:ERR )?(?:unknown|unsupported) command " +
		"['`](?i:s?subscribe|s?unsubscribe)['`]"),
		"connect to the server itself, or through a proxy that lets subscriptions pass"},
	{regexp.MustCompile("^ERR bad lua script for redis cluster"),
		"set the parameter script_check_enable of the server's proxy to 0"},
	{regexp.MustCompile("^ERR (?:DB index is out of range|SELECT is not allowed in cluster mode)"),
		"use a database that the server has; a cluster has only number 0"},
	{regexp.MustCompile("^ERR This instance has cluster support disabled"),
		"use a client for a single server"},
}

// deniedErrors match errors from inside a script that used a command or a key that the server
// always denies.
var deniedErrors = []advisedError{
	{regexp.MustCompile("ACL failure in script|The user executing the script can't|-?NOPERM"),
		"give the user the permissions that the backend's package documentation lists"},
	{regexp.MustCompile("accessing undeclared key"),
		"start the server with --default_lua_flags=allow-undeclared-keys"},
	{regexp.MustCompile(
		`(?i)unknown (?:\w+ )?command called from|command is not allowed from script`),
		"the server must have the commands that the backend's package documentation lists"},
}

// An advisedError is a pattern of error texts, with advice on how to fix such an error.
type advisedError struct {
	text   *regexp.Regexp
	advice string
}

// adviceOn returns the advice of the first element of kinds whose pattern matches the text. It
// returns "" if none does.
func adviceOn(text string, kinds []advisedError) string {
	for _, e := range kinds {
		if e.text.MatchString(text) {
			return e.advice
		}
	}
	return ""
}

// wrappedError matches the error text of servers before 7.0, and of miniredis, when a command fails
// inside a script. They put the error's code in the middle of the text. The pattern contains only
// codes that these servers raise at or before a script's first write. For other errors, the code is
// ERR.
var wrappedError = regexp.MustCompile(
	`^ERR Error (?:running script \(call to f_[0-9a-f]{40}\)|compiling script \(new function\)): ` +
		`(?:(?:@?user_script)?: ?\d+: )+-?(WRONGTYPE|READONLY|OOM) `)

// parseError returns an error's code, and whether the error came from inside a script. If the text
// doesn't say where it came from, inScript is true.
func parseError(text string) (code string, inScript bool) {
	if m := wrappedError.FindStringSubmatch(text); m != nil {
		return m[1], true
	}
	if strings.HasPrefix(text, "ERR "+maxClients) {
		return maxClients, false
	}
	if adviceOn(text, pointlessErrors) != "" {
		return pointless, false
	}
	code, rest, _ := strings.Cut(text, " ")
	return code, strings.Contains(rest, "script") && code != "BUSY"
}

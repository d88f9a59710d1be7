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

// errDenied is wrapped in the error of a script that was refused something which it would be
// refused again: see denials.
var errDenied = errors.New("a part of the step is refused")

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
}

// These stand for errors that have no code of their own.
const (
	maxClients = "max number of clients"
	pointless  = "pointless"
)

// pointlessErrors are how a server, or a proxy before it, answers that it will never carry out a
// command, or never lets the client as it is configured come to that: without the commands that run
// scripts, or those that subscribe; without the database, or without the slots of a cluster; and a
// proxy that reads scripts and does not like one. Nothing was done.
var pointlessErrors = []advisedError{
	{regexp.MustCompile("^(?:ERR )?(?:unknown|unsupported) command ['`](?i:evalsha|eval)['`]" +
		"|^NOPERM .*'(?i:evalsha|eval)'|^ERR command (?i:evalsha|eval) not support"),
		"locks need a server that runs Lua scripts, and any proxy before it must let EVAL and EVALSHA pass"},
	{regexp.MustCompile("^(?:ERR )?(?:unknown|unsupported) command ['`](?i:s?subscribe|s?unsubscribe)['`]"),
		"connect to the server itself, or by a proxy that lets subscriptions pass"},
	{regexp.MustCompile("^ERR bad lua script for redis cluster"),
		"set the parameter script_check_enable of the server's proxy to 0"},
	{regexp.MustCompile("^ERR (?:DB index is out of range|SELECT is not allowed in cluster mode)"),
		"use a database that the server has; a cluster has only number 0"},
	{regexp.MustCompile("^ERR This instance has cluster support disabled"),
		"use a client for a single server"},
}

// deniedErrors are how a server answers inside a script that it will never carry out a part of it.
var deniedErrors = []advisedError{
	{regexp.MustCompile("ACL failure in script|The user executing the script can't|-?NOPERM"),
		"give the user the permissions that the backend's package documentation lists"},
	{regexp.MustCompile("accessing undeclared key"),
		"start the server with --default_lua_flags=allow-undeclared-keys"},
	{regexp.MustCompile(`(?i)unknown (?:\w+ )?command called from|command is not allowed from script`),
		"the server must have the commands that the backend's package documentation lists"},
}

// An advisedError is a kind of error text, and what is to be done about it.
type advisedError struct {
	text   *regexp.Regexp
	advice string
}

// adviceOn returns what is to be done about an error text of one of these kinds, or nothing.
func adviceOn(text string, kinds []advisedError) string {
	for _, e := range kinds {
		if e.text.MatchString(text) {
			return e.advice
		}
	}
	return ""
}

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
	if adviceOn(text, pointlessErrors) != "" {
		return pointless, false
	}
	code, rest, _ := strings.Cut(text, " ")
	return code, strings.Contains(rest, "script") && code != "BUSY"
}

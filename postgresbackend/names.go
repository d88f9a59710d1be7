package postgresbackend

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Names and owners are stored verbatim, so that people can read the tables. Those that PostgreSQL
// can't store as text, or that begin with \x, are stored as \x followed by hexadecimal digits.

// escape is the prefix of names that are stored in hexadecimal.
const escape = `\x`

func encode(name string) string {
	if utf8.ValidString(name) && !strings.Contains(name, "\x00") &&
		!strings.HasPrefix(name, escape) {
		return name
	}
	return escaped(name)
}

func escaped(name string) string { return escape + hex.EncodeToString([]byte(name)) }

func decode(stored string) string {
	if digits, ok := strings.CutPrefix(stored, escape); ok {
		if name, err := hex.DecodeString(digits); err == nil {
			return string(name)
		}
	}
	return stored
}

// Limits in bytes. An index entry can't be longer than 2,704 bytes, and one index contains both the
// name and the owner.
const (
	longestName = 2500 // of a name, as stored
	longestPair = 2650 // of a name and an owner together
)

// checkNames returns an error if a name or an owner is too long to be stored. Both must already be
// encoded as they will be stored.
func checkNames(name string, owners ...string) error {
	if len(name) > longestName {
		return refused(fmt.Errorf("the name has %d bytes, more than %d", len(name),
			longestName))
	}
	for _, owner := range owners {
		if len(name)+len(owner) > longestPair {
			return refused(fmt.Errorf("the name and the owner have %d bytes, more than %d",
				len(name)+len(owner), longestPair))
		}
	}
	return nil
}

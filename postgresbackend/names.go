package postgresbackend

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Names and owners are stored as they are, so that people can read the tables. What isn't text for
// PostgreSQL, and what begins as such names are stored, is \x and hexadecimal.

// escape is what such a name begins with.
const escape = `\x`

func encode(name string) string {
	if utf8.ValidString(name) && !strings.Contains(name, "\x00") && !strings.HasPrefix(name, escape) {
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

// An entry of an index has at most 2,704 bytes, and each part is found by name and owner.
const (
	longestName = 2500 // as stored
	longestPair = 2650 // a name and an owner
)

// checkNames says why a name and an owner can't be stored. Both are as stored.
func checkNames(name string, owners ...string) error {
	if len(name) > longestName {
		return refused(fmt.Errorf("a name of %d bytes; at most %d are possible", len(name), longestName))
	}
	for _, owner := range owners {
		if len(name)+len(owner) > longestPair {
			return refused(fmt.Errorf("a name and an owner of %d bytes; at most %d are possible", len(name)+len(owner), longestPair))
		}
	}
	return nil
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// meant returns the name that is spelled most like word, or "" if no name is similar enough.
func meant(word string, names ...string) (best string) {
	if len(word) < 2 {
		return ""
	}
	least := max(2, len(word)/2)
	for _, name := range names {
		d := distance(word, name)
		if strings.HasPrefix(name, word) {
			d = 1
		}
		if d < least {
			best, least = name, d
		}
	}
	return best
}

// distance returns how many edits turn one word into another. An edit deletes, inserts or replaces
// a letter, or swaps two adjacent letters.
func distance(a, b string) int {
	s, t := []rune(a), []rune(b)
	var rows [][]int // rows[i][j] is the distance between s[:i] and t[:j]
	for i := range len(s) + 1 {
		rows = append(rows, make([]int, len(t)+1))
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			replaced := rows[i-1][j-1]
			if s[i-1] != t[j-1] {
				replaced++
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replaced)
			if i > 1 && j > 1 && s[i-1] == t[j-2] && s[i-2] == t[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(s)][len(t)]
}

// noCommand returns the error for a word that isn't a subcommand of cmd.
func noCommand(cmd *cobra.Command, word string) error {
	var names []string
	name := ""
	for _, c := range cmd.Commands() {
		if slices.Contains(c.SuggestFor, word) {
			name = c.Name()
		}
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	if name = cmp.Or(name, meant(word, names...)); name != "" {
		return exitf(exitUsage, "there is no command %s: did you mean %s?", printable(word), name)
	}
	return exitf(exitUsage, "there is no command %s: see %s --help", printable(word),
		cmd.CommandPath())
}

// noFlag returns the error for flags of cmd that couldn't be parsed. For an unknown flag, it
// suggests a similar one.
func noFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if ok && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if name := meant(unknown.GetSpecifiedName(), names...); name != "" {
			err = fmt.Errorf("%w: did you mean --%s?", err, name)
		}
	}
	return exit(exitUsage, err)
}

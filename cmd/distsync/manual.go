package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManual returns the command that writes the manual pages, for packagers.
func newManual(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages into a directory",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			// Omit the date, so that all builds of a version are identical.
			root.DisableAutoGenTag = true
			// Help topics have no manual pages of their own, so include them in the root page. In
			// Markdown, four leading spaces mark code.
			root.Long = strings.ReplaceAll(overview+"\n\n"+stores, "\n  ", "\n    ")
			return doc.GenManTree(root,
				&doc.GenManHeader{Section: "1", Source: "distsync", Manual: "distsync"}, args[0])
		},
	}
}

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
			// Without this, two builds of the same version would differ by the date.
			root.DisableAutoGenTag = true
			// Help topics have no manual pages of their own, so the root page includes them. An
			// indent of four marks code in Markdown.
			root.Long = strings.ReplaceAll(overview+"\n\n"+stores, "\n  ", "\n    ")
			return doc.GenManTree(root,
				&doc.GenManHeader{Section: "1", Source: "distsync", Manual: "distsync"}, args[0])
		},
	}
}

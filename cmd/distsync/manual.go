package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManual returns the command that writes the manual's pages, for those who make packages.
func newManual(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the pages of the manual into a directory, for man",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			root.DisableAutoGenTag = true                                            // or each build of the same would differ
			root.Long = strings.ReplaceAll(overview+"\n\n"+stores, "\n  ", "\n    ") // which has no page; what is set off is code
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "distsync", Manual: "distsync"}, args[0])
		},
	}
}

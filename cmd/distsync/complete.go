package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed951563bd/distsync/dlock"
)

// completeNames returns a function that completes the names of held locks, for a command that takes
// up to most names. If most is negative, there is no such limit. The function returns no names if
// the store doesn't answer within a second.
func (g *global) completeNames(most int) cobra.CompletionFunc {
	return func(
		cmd *cobra.Command, args []string, begun string,
	) (names []string, _ cobra.ShellCompDirective) {
		if fromEnvironment(cmd.Flags()) != nil || most >= 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		g.timeout = min(g.timeout, time.Second)
		ctx, cancel := context.WithTimeout(cmd.Context(), g.timeout)
		defer cancel()
		_ = g.with(ctx, func(_ *store, c *dlock.Client) error {
			for l, err := range c.Locks(ctx, begun) {
				if err != nil || len(names) == 100 {
					break
				}
				if printable(l.Name) == l.Name {
					names = append(names, l.Name)
				}
			}
			return nil
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

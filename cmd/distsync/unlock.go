package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

func newUnlock(g *global) *cobra.Command {
	var force, yes, forget bool
	cmd := &cobra.Command{
		Use:        "unlock --force NAME",
		SuggestFor: []string{"release", "free", "rm", "delete"},
		Short:      "Take a lock away from its holders",
		Long: `Takes a lock away from all its holders, whatever its kind: a plain lock, both sides
of a read-write lock, all permits of a semaphore. Waiters are woken. The first in
line for a fair lock gets it.

The holder isn't asked, and goes on until its client notices: at the next renewal, or when
a fixed lease ends. Until then two may be inside. So make sure first that the holder is
gone: distsync show NAME prints its host and process. The lock of a dead holder becomes
free by itself when its lease ends.

Redis and Valkey keep the number of a semaphore, so another kind of lock can't have its
name. --forget deletes that number, too. Java programs that use the semaphore then have
to call trySetPermits again. No store can tell such a number from another program's data.

On a terminal it shows the holders, and asks. Without a terminal it needs --yes.`,
		Example: `  distsync unlock --force orders:42
  distsync unlock --force --yes --json orders:42
  distsync unlock --force --forget gpu`,
		Args:              usage(cobra.ExactArgs(1)),
		ValidArgsFunction: g.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !force {
				return exitf(exitUsage,
					"a lock is released by its holder: to take it away, add --force")
			}
			if !yes && !(isTerminal(cmd.InOrStdin()) && isTerminal(cmd.ErrOrStderr())) {
				return exitf(exitUsage, "there is no terminal to ask on: add --yes")
			}
			return g.with(cmd.Context(), func(s *store, c *dlock.Client) error {
				return g.unlock(cmd, s, c, args[0], yes, forget)
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "take the lock away from its holders")
	cmd.Flags().BoolVar(&yes, "yes", false, "don't ask")
	cmd.Flags().BoolVar(&forget, "forget", false,
		"also delete the number of a semaphore (Redis, Valkey)")
	for _, name := range []string{"force", "yes", "forget"} {
		cmd.Flags().Lookup(name).Annotations = map[string][]string{byHand: nil}
	}
	return cmd
}

// unlocked is the result of "distsync unlock" in JSON.
type unlocked struct {
	nameJSON
	Released  bool         `json:"released"`
	Forgotten bool         `json:"forgotten,omitempty"` // the semaphore's limit was deleted
	Holders   []holderJSON `json:"holders"`             // the holders just before the release
	More      int          `json:"more,omitempty"`
}

func (g *global) unlock(
	cmd *cobra.Command, s *store, c *dlock.Client, name string, yes, forget bool,
) error {
	l, err := g.inspect(cmd.Context(), s, c, name)
	if err != nil {
		return err
	}
	asked := screenOf(cmd.ErrOrStderr())
	forget = forget && l.Kind == backend.Permits && s.keepsNumbers()
	if (len(l.Holders) > 0 || forget) && !yes {
		if err := ask(cmd, asked, l); err != nil {
			return err
		}
		now, err := g.inspect(cmd.Context(), s, c, name)
		if err != nil {
			return err
		}
		if len(l.Holders) > 0 && !sameHolders(l, now) {
			fmt.Fprint(asked, describe(asked, now))
			return exitf(exitFailed,
				"the holders have changed meanwhile: nothing was done")
		}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), g.timeout)
	defer cancel()
	released, forgotten := false, false
	if len(l.Holders) > 0 || forget { // a release also removes expired permits
		if released, err = forceUnlock(ctx, c, l); err != nil {
			return g.failed(s, err)
		}
	}
	if forget {
		if forgotten, err = s.forget(ctx, g.prefix+name); err != nil {
			return g.failed(s, err)
		}
	}
	if g.json {
		err = printJSON(cmd.OutOrStdout(), unlocked{
			jsonName(name), released, forgotten, jsonHolders(l.Holders), l.More,
		})
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), g.told(l, released, forgotten))
	}
	g.hint(ctx, cmd.ErrOrStderr(), s, c, l)
	if err == nil && forget && !forgotten {
		return exitf(exitFailed, "somebody uses the semaphore now: its number was not deleted")
	}
	return err
}

// ask shows the holders of the lock, and returns an error unless the user answers yes.
func ask(cmd *cobra.Command, s screen, l *dlock.LockInfo) error {
	fmt.Fprintf(s, "%sTake the lock away? Its holder goes on until it notices. [y/N] ",
		describe(s, l))
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil {
		fmt.Fprintln(s)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return exitf(exitFailed, "nothing was done")
}

// sameHolders reports whether the lock has holders now, and all of them also held it before. If the
// list of earlier holders is incomplete, sameHolders accepts any holders.
func sameHolders(before, now *dlock.LockInfo) bool {
	ids := make(map[string]bool)
	for _, h := range before.Holders {
		ids[h.ID] = true
	}
	for _, h := range now.Holders {
		if !ids[h.ID] {
			return before.More > 0 // not all earlier holders were listed
		}
	}
	return len(now.Holders) > 0
}

// forceUnlock releases a lock for all its holders.
func forceUnlock(ctx context.Context, c *dlock.Client, l *dlock.LockInfo) (bool, error) {
	switch l.Kind {
	case backend.Permits:
		return c.Semaphore(l.Name, 0).ForceRelease(ctx)
	case backend.Read, backend.Write:
		rw := c.RWLocker(l.Name)
		wrote, err := rw.Writer().ForceUnlock(ctx) // also releases the writer's reads
		if err != nil {
			return false, err
		}
		read, err := rw.Reader().ForceUnlock(ctx)
		return wrote || read, err
	}
	if len(l.Line) > 0 { // a fair lock, which the first waiter gets at once
		return c.FairLocker(l.Name).ForceUnlock(ctx)
	}
	return c.Locker(l.Name).ForceUnlock(ctx)
}

// told returns the text that describes the result of unlock.
func (g *global) told(l *dlock.LockInfo, released, forgotten bool) string {
	name := printable(l.Name)
	var text strings.Builder
	switch {
	case forgotten:
		fmt.Fprintf(&text, "%s: its number was deleted\n", name)
	case released, g.quiet:
	case len(l.Holders) == 0 && l.Kind == backend.Permits:
		fmt.Fprintf(&text, "%s: %s; --forget deletes it\n", name, stateOf(l))
	default:
		fmt.Fprintf(&text, "%s: nobody has it\n", name)
	}
	if !released {
		return text.String()
	}
	for _, h := range l.Holders {
		fmt.Fprintf(&text, "%s: taken from %s (%s)\n", name, printable(h.ID), h.Kind)
	}
	if l.More > 0 {
		fmt.Fprintf(&text, "%s: and from %d more\n", name, l.More)
	}
	return text.String()
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
)

// with connects to the store and calls fn with the store and a client.
func (g *global) with(ctx context.Context, fn func(*store, *dlock.Client) error) error {
	s, err := g.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	c := dlock.New(s.Backend, dlock.WithLogger(slog.New(slog.DiscardHandler)))
	defer c.Close()
	return fn(s, c)
}

// failed adds an exit status to a store error.
func (g *global) failed(s *store, err error) error {
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return exitf(exitUnavailable, "%s didn't answer within %v: %w", s.address, g.timeout,
			err)
	case errors.Is(err, errors.ErrUnsupported), backend.KindOf(err) == backend.Refused:
		return exit(exitFailed, err)
	}
	return exitf(exitUnavailable, "%s: %w", s.address, err)
}

// inspect asks the store about one lock. It waits no longer than the store timeout.
func (g *global) inspect(
	ctx context.Context, s *store, c *dlock.Client, name string,
) (*dlock.LockInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	l, err := c.Inspect(ctx, name)
	return &l, g.failed(s, err)
}

// usage wraps args. The result also rejects empty names, and its errors have the exit status
// exitUsage.
func usage(args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, got []string) error {
		if err := args(cmd, got); err != nil {
			return exitf(exitUsage, "%w: usage is %s", err, cmd.UseLine())
		}
		if slices.Contains(got, "") {
			return exitf(exitUsage, "a name is empty: usage is %s", cmd.UseLine())
		}
		return nil
	}
}

// adapters are the prefixes that the adapters add to the name of a job or resource to form the name
// of its lock.
var adapters = []string{"certmagic:", "cron:", "gocron:"}

// hint helps a user who omitted an adapter's prefix. If the lock is free, hint puts each adapter's
// prefix in front of its name. If a lock with the resulting name is held, hint prints that name. It
// returns true if another call would be pointless, because it has printed a name or the store
// failed. A failure of the store isn't reported.
func (g *global) hint(ctx context.Context, w io.Writer, s *store, c *dlock.Client,
	l *dlock.LockInfo) (done bool) {
	if len(l.Holders) > 0 || g.json || g.quiet {
		return false
	}
	for _, prefix := range adapters {
		akin, err := g.inspect(ctx, s, c, prefix+l.Name)
		if errors.Is(err, dlock.ErrConflict) {
			continue
		}
		if err != nil {
			return true
		}
		if len(akin.Holders) > 0 {
			fmt.Fprintf(w, "distsync: nobody has %s, but somebody has %s\n",
				printable(l.Name), printable(akin.Name))
			done = true
		}
	}
	return done
}

func newList(g *global) *cobra.Command {
	return &cobra.Command{
		Use:        "ls [PREFIX]",
		SuggestFor: []string{"list"},
		Short:      "List the held locks and their holders",
		Long: `Lists the held locks, or those of them whose names begin with PREFIX. Each line has
one holder, and how many others there are. COUNT is the number of holds, or how many
permits of how many are acquired. LASTS is when the lease ends unless it is renewed.
IN LINE is the number of waiters in line, which stores know of fair locks only.

"kept" means that the lock was released, and stays taken for a while (AtLeast, Once):
nobody is inside. No store knows since when a lock is held. A semaphore with no
permit acquired isn't listed; show prints it.

The store serves other clients meanwhile, even if it has many keys. Redis and Valkey
have to look at all keys, with or without --prefix and PREFIX, so it may take a while.
Data that looks like a lock is listed, too.

A holder is shown by the id of its client. By default that is HOST/PROCESS/RANDOM.
For permits, Redis and Valkey have only a digest of the holder.`,
		Example: `  distsync ls
  distsync ls orders:
  distsync ls --json | jq -r 'select(.holders[].client | startswith("web-1/")) | .name'`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: g.completeNames(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return g.with(cmd.Context(), func(s *store, c *dlock.Client) error {
				return g.list(cmd, s, c, prefix)
			})
		},
	}
}

func (g *global) list(cmd *cobra.Command, s *store, c *dlock.Client, prefix string) error {
	seen := make(map[string]bool)
	var locks []dlock.LockInfo
	for l, err := range c.Locks(cmd.Context(), prefix) {
		if err != nil {
			return g.failed(s, err)
		}
		if seen[l.Name] {
			continue
		}
		seen[l.Name] = true
		if !g.json {
			locks = append(locks, l)
		} else if err := printJSON(cmd.OutOrStdout(), jsonLock(&l)); err != nil {
			return err
		}
	}
	if len(seen) == 0 && !g.quiet && !g.json {
		fmt.Fprintln(cmd.ErrOrStderr(), "nobody holds a lock"+beginning(prefix))
	}
	slices.SortFunc(locks, func(a, b dlock.LockInfo) int { return cmp.Compare(a.Name, b.Name) })
	t := table{
		head: []string{"NAME", "KIND", "HOLDER", "COUNT", "LASTS", "IN LINE"}, cut: []int{2, 0},
	}
	for _, l := range locks {
		t.rows = append(t.rows, []string{
			printable(l.Name), kindOf(&l).String(), firstHolder(&l), counts(&l), lastsLongest(&l),
			inLine(&l),
		})
	}
	out := screenOf(cmd.OutOrStdout())
	_, err := io.WriteString(out, t.on(out))
	return err
}

func beginning(prefix string) string {
	if prefix == "" {
		return ""
	}
	return " whose name begins with " + printable(prefix)
}

// firstHolder returns the first holder and the number of the other holders, as in "web-1 +2".
func firstHolder(l *dlock.LockInfo) string {
	if len(l.Holders) == 0 {
		return ""
	}
	text := printable(cmp.Or(l.Holders[0].Client, l.Holders[0].ID))
	if more := len(l.Holders) - 1 + l.More; more > 0 {
		text += " +" + strconv.Itoa(more)
	}
	return text
}

// counts returns the number of holds of a lock. For a semaphore, it returns the number of acquired
// permits and the limit, as in "2/5".
func counts(l *dlock.LockInfo) string {
	sum := 0
	for _, h := range l.Holders {
		sum += h.Count
	}
	text := strconv.Itoa(sum)
	if l.More > 0 {
		text = "≥ " + strconv.Itoa(sum+l.More)
	}
	if l.Limit > 0 {
		text += "/" + strconv.Itoa(l.Limit)
	}
	return text
}

// lastsOf describes how long a holder keeps the lock without a renewal.
func lastsOf(h dlock.Holder) string {
	if h.Kept {
		return lasts(h.Remaining) + ", released and kept"
	}
	return lasts(h.Remaining)
}

// lastsLongest describes how long the lock stays taken if it isn't renewed. It adds "kept" if all
// holders have released the lock, which then stays taken only for the time that they asked for.
func lastsLongest(l *dlock.LockInfo) string {
	if len(l.Holders) == 0 {
		return ""
	}
	longest, kept := l.Holders[0].Remaining, true
	for _, h := range l.Holders {
		if h.Remaining < 0 {
			return lasts(h.Remaining)
		}
		longest = max(longest, h.Remaining)
		kept = kept && h.Kept
	}
	if kept {
		return lasts(longest) + ", kept"
	}
	return lasts(longest)
}

func inLine(l *dlock.LockInfo) string {
	switch n := len(l.Line); {
	case n == 0:
		return ""
	case n >= backend.MostHolders:
		return "≥ " + strconv.Itoa(n)
	default:
		return strconv.Itoa(n)
	}
}

func newShow(g *global) *cobra.Command {
	return &cobra.Command{
		Use:        "show NAME…",
		SuggestFor: []string{"status", "get", "inspect", "who"},
		Short:      "Show the holders of a lock, and the waiters in line",
		Long: `Shows the holders of a lock of any kind. Each line has the number of holds or permits
of a holder, and when its lease ends unless it is renewed. For a fair lock, the waiters
in line follow in order.

If nobody has the lock, that is printed, and isn't an error. The store then doesn't
know the lock's kind, so the kind in JSON means nothing. Semaphores on Redis and Valkey
are the exception: their number stays, so another kind of lock can't have the name
until unlock --force --forget has deleted the number.

No store knows whether a lock is being renewed. So look again: if LASTS has grown, the
holder is alive. If LASTS falls for more than a third of the lease (usually 10s), the
holder is dead or cut off, or its lease is fixed.

"released and kept" means that the lock stays taken for a while
(AtLeast, Once): nobody is inside.

Adapters put a prefix before the names of jobs: the lock of gocron's job "tick" is
"gocron:tick". If nobody has "tick", but somebody has that, a message says so.

A holder is CLIENT:NUMBER. By default CLIENT is HOST/PROCESS/RANDOM.`,
		Example: `  distsync show orders:42
  distsync show --json orders:42 | jq .holders`,
		Args:              usage(cobra.MinimumNArgs(1)),
		ValidArgsFunction: g.completeNames(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), func(s *store, c *dlock.Client) error {
				for i, name := range args {
					l, err := g.inspect(cmd.Context(), s, c, name)
					if err == nil {
						err = g.show(cmd.OutOrStdout(), l, i > 0)
					}
					if err == nil {
						g.hint(cmd.Context(), cmd.ErrOrStderr(), s, c, l)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// show prints a lock. In text output, an empty line precedes the lock if another one was printed
// before.
func (g *global) show(w io.Writer, l *dlock.LockInfo, another bool) error {
	if g.json {
		return printJSON(w, jsonLock(l))
	}
	text := describe(screenOf(w), l)
	if another {
		text = "\n" + text
	}
	_, err := io.WriteString(w, text)
	return err
}

// describe returns all details of a lock as text.
func describe(s screen, l *dlock.LockInfo) string {
	holders := table{head: []string{"HOLDER", "KIND", "COUNT", "LASTS"}, cut: []int{0}}
	for _, h := range l.Holders {
		holders.rows = append(holders.rows, []string{
			printable(h.ID), h.Kind.String(), strconv.Itoa(h.Count), lastsOf(h),
		})
	}
	if l.More > 0 {
		holders.rows = append(holders.rows, []string{
			fmt.Sprintf("and %d more", l.More), "", "", "",
		})
	}
	line := table{head: []string{"IN LINE", ""}, cut: []int{1}}
	for i, owner := range l.Line {
		line.rows = append(line.rows, []string{strconv.Itoa(i + 1), printable(owner)})
	}
	return fmt.Sprintf("%s: %s\n%s%s", s.paint(bold, printable(l.Name)), stateOf(l), holders.on(s),
		line.on(s))
}

// stateOf describes the state of a lock: held, free, or perhaps data of another program.
func stateOf(l *dlock.LockInfo) string {
	switch {
	case len(l.Holders) > 0:
		return kindOf(l).String() + ", " + held(l)
	case l.Kind == backend.Permits:
		number := "a number"
		if l.Limit > 0 {
			number = "the number " + strconv.Itoa(l.Limit)
		}
		return "nobody has it, but the store has " + number +
			" there: a semaphore with no permit acquired, or data of another program"
	}
	return "nobody has it"
}

// held describes how many holders a lock has.
func held(l *dlock.LockInfo) string {
	if l.Kind == backend.Permits {
		return counts(l) + " permits are acquired"
	}
	if n := len(l.Holders) + l.More; n > 1 {
		return fmt.Sprintf("%d hold it", n)
	}
	return "held"
}

// Command distsync shows who has distributed locks in Redis, Valkey, etcd and PostgreSQL, runs
// commands under them, and frees those that are stuck.
//
//	git clone https://github.com/seed951563bd/distsync
//	go -C distsync/cmd/distsync install .
//
//	export DISTSYNC_STORE=redis://localhost:6379
//	distsync ls                            # which locks are held, and by whom
//	distsync show orders:42                # who has one, for how long, and the line for it
//	distsync watch orders:42               # who comes and goes
//	distsync shards billing                # which member runs which shard
//	distsync run nightly -- ./backup       # runs a command while it has the lock
//	distsync hold deploy                   # holds a lock until Ctrl-C
//	distsync unlock --force orders:42      # takes a lock away from its holder
//	distsync doctor                        # whether locks can work there, for this user
//
// See distsync help for the stores and their URLs, the environment, and the exit status. Each command
// has examples: distsync run --help.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/seed951563bd/distsync/cmd/distsync/internal/child"
)

func main() {
	child.Guard()
	os.Exit(execute(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute carries out a command line and returns the status to exit with.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	logging.Disable() // what go-redis has to say it also returns
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addDefaults(root)
	err := root.ExecuteContext(ctx)
	status := statusOf(err)
	if text := message(err); text != "" {
		fmt.Fprintf(stderr, "distsync: %s\n", text)
	}
	return status
}

// newRoot returns the command with all its subcommands.
func newRoot() *cobra.Command {
	g := new(global)
	root := &cobra.Command{
		Use:               "distsync",
		Short:             "Look at distributed locks, run commands under them, free those that are stuck",
		Long:              overview,
		Version:           version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags()) },
	}
	wantCommand(root)
	root.SetFlagErrorFunc(noFlag)
	g.define(root.PersistentFlags())
	root.AddCommand(newList(g), newShow(g), newWatch(g), newShards(g), newUnlock(g), newRun(g),
		newHold(g), newDoctor(g), newVersion(g), newManual(root))
	root.AddCommand(newHelp()...)
	return root
}

// wantCommand makes a command that has others, and does nothing itself, say so: what it can do, or
// that a word is none of them.
func wantCommand(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return noCommand(cmd, args[0])
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cmd.SetOut(cmd.ErrOrStderr())
		_ = cmd.Help()
		return exit(exitUsage, nil)
	}
}

// addDefaults adds the commands that every program of this kind has. Where they write has to be
// known.
func addDefaults(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion":
			wantCommand(c)
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				if found, _, _ := root.Find(args); found == root && len(args) > 0 {
					return noCommand(root, args[0])
				}
				return nil
			}
		}
	}
}

// Command distsync shows the holders of distributed locks in Redis, Valkey, etcd and PostgreSQL. It
// runs commands under locks, and frees locks that are stuck.
//
//	git clone https://github.com/seed951563bd/distsync
//	go -C distsync/cmd/distsync install .
//
//	export DISTSYNC_STORE=redis://localhost:6379
//	distsync ls                            # lists the held locks and their holders
//	distsync show orders:42                # shows a lock's holders, lease and waiters in line
//	distsync watch orders:42               # reports acquisitions and releases
//	distsync shards billing                # shows which member runs which shard
//	distsync run nightly -- ./backup       # runs a command while it has the lock
//	distsync hold deploy                   # holds a lock until Ctrl-C
//	distsync unlock --force orders:42      # takes a lock away from its holder
//	distsync doctor                        # checks whether locks work on the store for this user
//
// See distsync help for the stores and their URLs, the environment, and the exit status. The help
// of each command has examples: distsync run --help.
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

// execute runs a command line and returns the exit status.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	logging.Disable() // go-redis returns all errors that it logs
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

// newRoot returns the root command with all its subcommands.
func newRoot() *cobra.Command {
	g := new(global)
	root := &cobra.Command{
		Use:           "distsync",
		Short:         "Look at distributed locks, run commands under them, free stuck ones",
		Long:          overview,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return fromEnvironment(cmd.Flags())
		},
	}
	wantCommand(root)
	root.SetFlagErrorFunc(noFlag)
	g.define(root.PersistentFlags())
	root.AddCommand(newList(g), newShow(g), newWatch(g), newShards(g), newUnlock(g), newRun(g),
		newHold(g), newDoctor(g), newVersion(g), newManual(root))
	root.AddCommand(newHelp()...)
	return root
}

// wantCommand prepares a command that only has subcommands. Without arguments it lists them. An
// unknown subcommand is an error.
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

// addDefaults adds cobra's help and completion commands, and makes them report unknown words with
// our errors. Call it after setting the outputs, which these commands read when they are added.
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

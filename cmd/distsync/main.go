// Command distsync shows who has distributed locks in Redis, Valkey, etcd and PostgreSQL, runs
// commands under them, and frees those that are stuck.
//
//	git clone https://github.com/seed951563bd/distsync
//	go -C distsync/cmd/distsync install .
//
//	export DISTSYNC_STORE=redis://localhost:6379
//	distsync ls                            # which locks are held, and by whom
//	distsync show orders:42                # who has one, for how long, and who stands in line
//	distsync watch orders:42               # who comes and goes
//	distsync shards billing                # who runs which part of work that is divided
//	distsync run nightly -- ./backup       # runs a command while it has the lock
//	distsync unlock --force orders:42      # takes a lock away from whoever has it
//	distsync doctor                        # whether locks can work there, for this user
//
// The rest says distsync help: which stores there are and how their URLs look, what can be set in the environment, and with which
// status it exits. With --help each command has examples.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"

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
		Use:           "distsync",
		Short:         "Look at distributed locks, run commands under them, free those that are stuck",
		Long:          overview,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exitf(exitUsage, "there is no command %s: see distsync help", printable(args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(cmd.ErrOrStderr())
			_ = cmd.Help()
			return exit(exitUsage, nil)
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd.Flags()) },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit(exitUsage, err) })
	g.define(root.PersistentFlags())
	root.AddCommand(newList(g), newShow(g), newWatch(g), newShards(g), newUnlock(g), newRun(g),
		newDoctor(g), newManual(root))
	root.AddCommand(newHelp()...)
	return root
}

// version returns what this was built from: a release, or a commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}

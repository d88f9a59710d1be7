package main

import (
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// global holds the flags that all commands share.
type global struct {
	store   string
	prefix  string
	timeout time.Duration
	sharded bool
	json    bool
	quiet   bool
}

func (g *global) define(flags *pflag.FlagSet) {
	flags.StringVar(&g.store, "store", "",
		"URL of the store, such as redis://localhost:6379: see distsync help stores")
	flags.StringVar(&g.prefix, "prefix", "",
		"prefix of the keys of locks (default: none; in etcd distsync/locks/)")
	flags.DurationVar(&g.timeout, "store-timeout", 5*time.Second,
		"how long to wait for an answer of the store")
	flags.BoolVar(&g.sharded, "sharded", false,
		"use sharded channels, as all programs that share these locks do (Redis, Valkey)")
	flags.BoolVar(&g.json, "json", false, "print JSON, one object a line, for programs")
	flags.BoolVar(&g.quiet, "quiet", false, "print only what was asked for, and errors")
}

// byHand annotates a flag that can't be set through the environment.
const byHand = "by hand"

// variable returns the name of the environment variable that sets a flag.
func variable(flag string) string {
	return "DISTSYNC_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets flags from the environment, unless the command line sets them.
func fromEnvironment(flags *pflag.FlagSet) error {
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		value, set := os.LookupEnv(variable(f.Name))
		_, skip := f.Annotations[byHand]
		skip = skip || f.Name == "help" || f.Name == "version"
		if err != nil || skip || f.Changed || !set || value == "" {
			return
		}
		if e := flags.Set(f.Name, value); e != nil {
			err = exitf(exitUsage, "%s: %w", variable(f.Name), e)
		}
	})
	return err
}

// Bench compares the locks of this repository with other Go packages for distributed locks. It also
// compares them with a baseline, called the floor: a client that locks without a lock package.
//
//	go -C bench run . [-only W1,W3] [-on Redis] [-rounds 3] [-quick]
//		[-json FILE] [-out DIR] [-profile DIR]
//
// It needs redis-server, valkey-server, etcd, PostgreSQL and, for Redisson, Java. It omits the
// contenders whose programs aren't installed. README.md describes the measurements, and how to read
// the results.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if spec, ok := os.LookupEnv(trialVariable); ok {
		os.Exit(runChild(spec))
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// config holds the command-line options.
type config struct {
	only    []string
	on      []store // empty: all stores
	rounds  int
	quick   bool
	json    string
	out     string
	profile string
}

func parse(args []string) (config, error) {
	var c config
	var only, on string
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	flags.StringVar(&only, "only", "", "workloads to run, as in W1,W3 (default all)")
	flags.StringVar(&on, "on", "", "stores to measure, as in Redis,PostgreSQL (default all)")
	flags.IntVar(&c.rounds, "rounds", 3, "how often everything is measured; the median counts")
	flags.BoolVar(&c.quick, "quick", false, "a fifth of the time")
	flags.StringVar(&c.json, "json", "", "write all that was measured to `file`")
	flags.StringVar(&c.out, "out", "",
		"write tables to performance-tables.md in `dir`, and charts to dir/performance")
	flags.StringVar(&c.profile, "profile", "",
		"write profiles of CPU and allocations of each measuring process to `dir`")
	flags.Parse(args) // exits after an error
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if c.rounds < 1 {
		return c, fmt.Errorf("%d rounds", c.rounds)
	}
	if only != "" {
		c.only = strings.Split(only, ",")
	}
	if on != "" {
		for name := range strings.SplitSeq(on, ",") {
			c.on = append(c.on, store(name))
		}
	}
	for _, s := range c.on {
		if !slices.ContainsFunc(workloads, func(w workload) bool {
			return slices.Contains(w.stores, s)
		}) {
			return c, fmt.Errorf("no store %q", s)
		}
	}
	for _, id := range c.only {
		if !slices.ContainsFunc(workloads, func(w workload) bool { return w.id == id }) {
			return c, fmt.Errorf("no workload %q", id)
		}
	}
	var err error
	if c.profile != "" {
		c.profile, err = filepath.Abs(c.profile)
	}
	return c, err
}

func run(args []string) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	for _, dir := range []string{c.profile, c.out} {
		if dir != "" {
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return err
			}
		}
	}
	l := newLab(c.profile)
	fmt.Println(describe(l))
	var all report
	failed := false
	for _, w := range workloads {
		if len(c.only) > 0 && !slices.Contains(c.only, w.id) {
			continue
		}
		if len(c.on) > 0 {
			w.stores = slices.DeleteFunc(slices.Clone(w.stores), func(s store) bool {
				return !slices.Contains(c.on, s)
			})
			w.java = false
			if len(w.stores) == 0 {
				continue
			}
		}
		res, err := measure(l, w, c.rounds, c.quick)
		if err != nil {
			return err
		}
		all.Results = append(all.Results, res)
		res.print(os.Stdout)
		failed = failed || len(res.Failures) > 0
	}
	all.Machine = fmt.Sprintf("%s; medians of %d rounds", describe(l), c.rounds)
	if c.quick {
		all.Machine += ", in a fifth of the time"
	}
	if c.json != "" {
		if err := all.writeJSON(c.json); err != nil {
			return err
		}
	}
	if c.out != "" {
		if err := all.publish(c.out); err != nil {
			return err
		}
	}
	if failed {
		return fmt.Errorf("not everything could be measured: see above")
	}
	return nil
}

// Soak tests package dlock for any length of time. It runs simulated users of several clients on
// its own store, disturbs the network, the servers and the client processes, and checks that the
// locks keep their promises:
//
//	go run ./internal/test/soak -backend redis -minutes 30
//
// A run consists of episodes of a few seconds. In each episode, users of several clients use a few
// locks in all possible ways, and faults of all kinds are injected. Two of the clients run in
// separate processes. Then the faults end and the users finish. All waiters must get their locks,
// and at the end the store must be empty. The run also watches the heap and the goroutines.
//
// There are three kinds of violations: two users could rely on conflicting holds at the same time,
// according to their own checks; an increment was lost; or a call returned an answer that can't be
// right. No check depends on the speed of the machine.
//
// The seed, which is printed first, determines the random choices, but not their timing. The exit
// status is 1 after a violation, and 2 if the test couldn't be run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func main() {
	if text := os.Getenv(childSetting); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		return
	}
	known := strings.Join(slices.Sorted(maps.Keys(stores)), ", ")
	var (
		name    = flag.String("backend", "memory", "the store: "+known)
		minutes = flag.Float64("minutes", 1, "for how long")
		seed    = flag.Uint64("seed", 0, "of the random choices; 0: a random one")
		asJSON  = flag.Bool("json", false, "print the summary as a line of JSON, too")
	)
	flag.Parse()
	start := stores[*name]
	if start == nil {
		fmt.Fprintf(os.Stderr, "no store is called %q; there are %s\n", *name, known)
		os.Exit(2)
	}
	if *seed == 0 {
		*seed = uint64(rand.Uint32())
	}
	sum, err := soakStore(start, *seed, time.Duration(*minutes*float64(time.Minute)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	sum.print(os.Stdout)
	if *asJSON {
		if err := json.NewEncoder(os.Stdout).Encode(sum); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if !sum.good() {
		os.Exit(1)
	}
}

// soakStore starts a store, runs a soak on it, and stops it.
func soakStore(
	start func(testservers.TB) *store, seed uint64, length time.Duration,
) (summary, error) {
	p, err := newProgram()
	if err != nil {
		return summary{}, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	interrupted := context.AfterFunc(ctx, func() { p.Fatal(errors.New("interrupted")) })
	s := &soak{
		t:        p,
		store:    start(p),
		seed:     seed,
		length:   length,
		episode:  20 * time.Second,
		patience: 600,
		log:      os.Stderr,
	}
	sum := s.run(ctx)
	interrupted()
	stop()
	p.end()
	if err := goroutinesLeft(); err != nil {
		s.leftBehind(err.Error())
		sum.Goroutines++
	}
	return sum, nil
}

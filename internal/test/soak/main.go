// Soak lets random users of some clients lock for as long as one likes, on a store of its own, while it
// harms the network, the servers and the clients' processes, and checks all the time what package dlock
// promises:
//
//	go run ./internal/test/soak -backend redis -minutes 30
//
// It plays episodes of some seconds. In each, the users of several clients, two of them in processes of
// their own, use a handful of names in all the ways that there are, and faults of all kinds are injected.
// Then the faults end and the users finish what they are at: whoever waits must get in, and in the end
// nothing may be left in the store. The heap and the goroutines are looked at, too.
//
// A violation is a pair of holds that two users could rely on at the same time, by their own checks;
// an increment that was lost; or an answer that is never right. No check depends on how fast the
// machine is.
//
// Random choices follow from the seed, which is printed first; how they meet does not. The exit status
// is 1 if anything was found, and 2 if the run was not possible.
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

// soakStore starts a store, soaks it, and ends it.
func soakStore(start func(testservers.TB) *store, seed uint64, length time.Duration) (summary, error) {
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

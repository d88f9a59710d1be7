// Command model explores the lock protocol of package dlock, both unchanged and with one rule
// broken at a time. It tries every order of requests, replies, losses and ticks, within bounds.
// README.md describes the models.
//
//	go run .                  # everything
//	go run . -run hand-over   # the runs that match, with a shortest trace of each violation
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

func main() {
	only := flag.String("run", "",
		"explore only what matches this regular expression, and show traces")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	begin := time.Now()
	explored, states, surprises := 0, 0, 0
	for _, r := range runs() {
		if !match.MatchString(r.name) {
			continue
		}
		res := r.explore(r.breaks)
		explored++
		states += res.States
		surprise := r.surprise(res)
		if surprise != "" {
			surprises++
		}
		show(&r, res, surprise, *only != "")
	}
	fmt.Printf("\n%d explorations, %d states, %.0f s, %d surprises\n", explored, states,
		time.Since(begin).Seconds(), surprises)
	if surprises > 0 {
		os.Exit(1)
	}
}

// show prints the result of a run.
func show(r *run, res Result, surprise string, traces bool) {
	fmt.Printf("%s\n    %d states, %d deep, %.1f s: %s\n", r.name, res.States, res.Depth,
		res.Took.Seconds(), verdict(res))
	if surprise != "" {
		fmt.Printf("    NOT AS EXPECTED: %s\n", surprise)
	}
	if !traces && surprise == "" {
		return
	}
	for _, v := range res.Found {
		fmt.Printf("    %s:\n", v.Property)
		for i, line := range v.Trace {
			fmt.Printf("    %4d %s\n", i+1, line)
		}
	}
}

func verdict(res Result) string {
	if len(res.Found) == 0 {
		return "all properties hold"
	}
	var broken []string
	for _, v := range res.Found {
		broken = append(broken, fmt.Sprintf("%s after %d steps", v.Property, len(v.Trace)))
	}
	return "broken: " + strings.Join(broken, ", ")
}

// Command mutants introduces bugs into this repository's code, one at a time, and runs the tests
// after each change. It reports the changes that no test notices.
//
//	go run ./internal/test/mutants                   # all: about an hour
//	go run ./internal/test/mutants -only dlock/      # those that match this pattern
//	DISTSYNC_TESTS=change go run ./internal/test/mutants
//
// The changes are listed in mutants.txt. Each is tested with the tests of its own package. No file
// is modified, because the go command gets the changed text as an overlay. The exit status is 1 if
// at least one change went unnoticed.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed mutants.txt
var list string

// A mutant is a change that a test must notice.
type mutant struct {
	file     string // relative to the repository's root, with slashes
	words    string // the bug that the change causes
	old, new string // whole lines
}

// parse parses a list of mutants. Each mutant begins with a line that contains the path of a file
// and a description. Then come the lines of the old text, which begin with -, and those of the new
// text, which begin with +.
func parse(list string) ([]mutant, error) {
	var all []mutant
	for i, line := range strings.Split(list, "\n") {
		var m *mutant
		if len(all) > 0 {
			m = &all[len(all)-1]
		}
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '-' && m != nil && m.new == "":
			m.old += line[1:] + "\n"
		case line[0] == '+' && m != nil && m.old != "":
			m.new += line[1:] + "\n"
		default:
			file, words, ok := strings.Cut(line, ": ")
			if !ok || line[0] == '-' || line[0] == '+' {
				return nil, fmt.Errorf("line %d is out of place: %s", i+1, line)
			}
			all = append(all, mutant{file: file, words: words})
		}
	}
	return all, nil
}

// apply returns the file's text with the change. It returns an error unless the old text occurs
// exactly once.
func (m mutant) apply(text string) (string, error) {
	switch n := strings.Count(text, m.old); {
	case m.old == "":
		return "", errors.New("it changes nothing")
	case n != 1:
		return "", fmt.Errorf("its lines are there %d times", n)
	}
	return strings.Replace(text, m.old, m.new, 1), nil
}

// run reports whether a test of the package notices a mutant. If m is nil it runs the tests without
// a change, and returns an error unless all pass.
func run(ctx context.Context, root, pkg string, m *mutant) (noticed bool, err error) {
	// Some mutants make a test hang.
	args := []string{"test", "-count=1", "-failfast", "-vet=off", "-timeout=5m"}
	if m != nil {
		folder, err := os.MkdirTemp("", "mutant")
		if err != nil {
			return false, err
		}
		defer os.RemoveAll(folder)
		overlay, err := m.overlay(root, folder)
		if err != nil {
			return false, err
		}
		args = append(args, "-overlay="+overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err == nil:
		return false, nil
	case m == nil:
		return false, fmt.Errorf("%w\n%s", err, out)
	case errors.As(err, &exit) && !strings.Contains(string(out), "[build failed]") &&
		!strings.Contains(string(out), "[setup failed]"):
		return true, nil
	default:
		return false, fmt.Errorf("%s: %s: %w\n%s", m.file, m.words, err, out)
	}
}

// overlay writes the changed file into folder, and a description of the overlay for the go command.
func (m mutant) overlay(root, folder string) (string, error) {
	file := filepath.Join(root, filepath.FromSlash(m.file))
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	changed, err := m.apply(string(text))
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", m.file, m.words, err)
	}
	instead := filepath.Join(folder, filepath.Base(file))
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: instead}})
	if err != nil {
		return "", err
	}
	name := filepath.Join(folder, "overlay.json")
	return name, errors.Join(
		os.WriteFile(instead, []byte(changed), 0o600), os.WriteFile(name, overlay, 0o600))
}

func main() {
	only := flag.String("only", "",
		"a regular expression for the files and words of those to be tried")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	survivors, err := try(ctx, *only)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if survivors > 0 {
		os.Exit(1)
	}
}

// try tests the selected mutants, prints the results, and counts the mutants that no test noticed.
func try(ctx context.Context, only string) (survivors int, err error) {
	wanted, err := regexp.Compile(only)
	if err != nil {
		return 0, err
	}
	all, err := parse(list)
	if err != nil {
		return 0, err
	}
	root, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	type count struct{ tried, noticed int }
	counts := make(map[string]*count)
	var errs []error
	for _, m := range all {
		if !wanted.MatchString(m.file + ": " + m.words) {
			continue
		}
		pkg := path.Dir(m.file)
		if counts[pkg] == nil { // tests that already fail would seem to notice every mutant
			if _, err := run(ctx, root, pkg, nil); err != nil {
				return 0, fmt.Errorf("the tests of %s fail as it is: %w", pkg, err)
			}
			counts[pkg] = new(count)
		}
		began := time.Now()
		noticed, err := run(ctx, root, pkg, &m)
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case err != nil: // the mutant doesn't compile
			errs = append(errs, err)
			continue
		}
		counts[pkg].tried++
		word := "SURVIVED"
		if noticed {
			counts[pkg].noticed++
			word = "noticed "
		}
		fmt.Printf("%s %4.0f s  %s: %s\n", word, time.Since(began).Seconds(), m.file, m.words)
	}
	for _, pkg := range slices.Sorted(maps.Keys(counts)) {
		n := counts[pkg]
		fmt.Printf("%s: %d of %d noticed\n", pkg, n.noticed, n.tried)
		survivors += n.tried - n.noticed
	}
	return survivors, errors.Join(errs...)
}

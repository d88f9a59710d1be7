package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"Usage:":                          {},
		"there is no command frob":        {"frob"},
		"did you mean show?":              {"shwo"},
		"did you mean ls?":                {"list"},
		"no command unlok: did you":       {"help", "unlok"},
		"no command bsh: did you mean":    {"completion", "bsh"},
		"did you mean --store?":           {"ls", "--sotre", "redis://localhost"},
		"did you mean --lease?":           {"hold", "a", "--leas", "1s"},
		`no command "\x1b[31m"`:           {"\x1b[31m"},
		"the name is empty":               {"run", "", "--", "true"},
		"unknown flag: --frob":            {"ls", "--frob"},
		`flag: --\x1b[31m`:                {"ls", "--\x1b[31m"},
		"accepts at most 1 arg":           {"ls", "a", "b"},
		"requires at least 1 arg":         {"show"},
		"invalid argument":                {"ls", "--store-timeout", "soon"},
		"unknown command":                 {"doctor", "x"},
		"--every 1ms: want at least 20ms": {"watch", "n", "--every", "1ms"},
		"which store?":                    {"ls"},
		"--store-timeout 0s: no store": {
			"ls", "--store-timeout", "0", "--store", "redis://localhost",
		},
	} {
		got := inside(t.Context(), args...)
		if got.status != exitUsage || got.stdout != "" || !strings.Contains(got.stderr, want) ||
			strings.Contains(got.stderr, "\x1b") {
			t.Errorf("%q: status %d, %q, want %d and %q", args, got.status, got.stderr, exitUsage,
				want)
		}
	}
	for _, args := range [][]string{{"help"}, {"--help"}, {"help", "stores"}, {"unlock", "--help"},
		{"help", "hold"}, {"version"}, {"--version"}} {
		if got := inside(t.Context(), args...); got.status != 0 || got.stdout == "" ||
			got.stderr != "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// Names that are spelled like a word are offered, and no others.
func TestMeant(t *testing.T) {
	t.Parallel()
	names := []string{"ls", "show", "watch", "unlock", "store", "store-timeout"}
	for word, want := range map[string]string{
		"": "", "x": "", "xx": "", "frob": "", "l": "", "sl": "ls", "lss": "ls", "shwo": "show",
		"wathc": "watch", "unlok": "unlock", "nulock": "unlock", "sto": "store",
		"store-timout": "store-timeout",
		"Show":         "show", "überwachen": "", strings.Repeat("x", 1000): "",
	} {
		if got := meant(word, names...); got != want {
			t.Errorf("%q is taken for %q, want %q", word, got, want)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Setenv("DISTSYNC_VERSION", "v0.2.0") // of a script that installs it
	for want, args := range map[string][]string{
		"distsync " + version() + " " + runtime.Version() + " " + runtime.GOOS + "/" +
			runtime.GOARCH + "\n": {"version"},
		`{"version":"` + version() + `",`: {"version", "--json"},
		"distsync version " + version():   {"--version"},
	} {
		if got := inside(t.Context(), args...); got.status != 0 ||
			!strings.HasPrefix(got.stdout, want) {
			t.Errorf("%q: %+v, want %q", args, got, want)
		}
	}
	if got := inside(t.Context(), []string{}...); got.status != exitUsage ||
		!strings.Contains(got.stderr, "Usage:") {
		t.Errorf("%+v", got)
	}
}

// The completion script is one that shells understand. It completes commands and flags.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		got := inside(t.Context(), "completion", shell)
		if got.status != 0 || !strings.Contains(got.stdout, "__complete") || got.stderr != "" {
			t.Errorf("%s: %+v", shell, got)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("no %s here to read its script", shell)
			continue
		}
		cmd := exec.CommandContext(t.Context(), path, "-n")
		cmd.Stdin = strings.NewReader(got.stdout)
		if err := output(cmd); err != nil {
			t.Error(err)
		}
	}
	for want, args := range map[string][]string{
		"hold\tHold a lock":      {"ho"},
		"version\tPrint":         {"v"},
		"fair\nread\nwrite\n":    {"hold", "a", "--kind", ""},
		"--not-acquired\t":       {"hold", "--not"},
		"bash\t":                 {"completion", "b"},
		":4\nCompletion ended w": {"hold", "a", ""}, // one name is enough
	} {
		got := inside(t.Context(), append([]string{"__complete"}, args...)...)
		if all := got.stdout + got.stderr; got.status != 0 || !strings.Contains(all, want) {
			t.Errorf("%q: %+v, want %q", args, got, want)
		}
	}
}

// Every flag can be given in the environment; the command line goes first.
func TestEnvironment(t *testing.T) {
	server := testservers.Redis(t)
	server.Do("HSET", "lock:n", "app:1", "1")
	server.Do("PEXPIRE", "lock:n", "60000")
	t.Setenv("DISTSYNC_STORE", "redis://"+server.Addr)
	t.Setenv("DISTSYNC_PREFIX", "lock:")
	t.Setenv("DISTSYNC_JSON", "true")
	t.Setenv("DISTSYNC_STORE_TIMEOUT", "20s")
	if got := inside(t.Context(), "ls"); got.status != 0 ||
		!strings.HasPrefix(got.stdout, `{"name":"n",`) {
		t.Errorf("%+v", got)
	}
	if got := inside(t.Context(), "ls", "--json=false", "--prefix", "other:"); got.stdout != "" ||
		got.stderr != "nobody holds a lock\n" {
		t.Errorf("%+v", got)
	}
	t.Setenv("DISTSYNC_QUIET", "true")
	if got := inside(t.Context(), "ls", "--json=false", "--prefix", "other:"); got.stdout != "" ||
		got.stderr != "" {
		t.Errorf("%+v", got)
	}
	t.Setenv("DISTSYNC_STORE_TIMEOUT", "soon\x1b")
	if got := inside(t.Context(), "ls"); got.status != exitUsage ||
		!strings.Contains(got.stderr,
			`DISTSYNC_STORE_TIMEOUT: invalid argument "soon\x1b" `+
				`for "--store-timeout" flag: time: `) {
		t.Errorf("%+v", got)
	}
	t.Setenv("DISTSYNC_STORE_TIMEOUT", "")
	t.Setenv("DISTSYNC_STORE", "redis://:secret@a:b:c")
	if got := inside(t.Context(), "ls"); got.status != exitUsage ||
		strings.Contains(got.stderr, "secret") {
		t.Errorf("%+v", got)
	}
}

func TestManual(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if got := inside(t.Context(), "man", dir); got.status != 0 {
		t.Fatalf("%+v", got)
	}
	page, err := os.ReadFile(filepath.Join(dir, "distsync-unlock.1"))
	if err != nil || !strings.Contains(string(page), "--force") {
		t.Errorf("%s, %v", page, err)
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"Usage:":                       {},
		"there is no command frob":     {"frob"},
		`no command "\x1b[31m"`:        {"\x1b[31m"},
		"the name is empty":            {"run", "", "--", "true"},
		"unknown flag: --frob":         {"ls", "--frob"},
		`flag: --\x1b[31m`:             {"ls", "--\x1b[31m"},
		"accepts at most 1 arg":        {"ls", "a", "b"},
		"requires at least 1 arg":      {"show"},
		"invalid argument":             {"ls", "--store-timeout", "soon"},
		"unknown command":              {"doctor", "x"},
		"--every 1ms: at least 20ms":   {"watch", "n", "--every", "1ms"},
		"which store?":                 {"ls"},
		"--store-timeout 0s: no store": {"ls", "--store-timeout", "0", "--store", "redis://localhost"},
	} {
		got := inside(t.Context(), args...)
		if got.status != exitUsage || got.stdout != "" || !strings.Contains(got.stderr, want) || strings.Contains(got.stderr, "\x1b") {
			t.Errorf("%q: status %d, %q, want %d and %q", args, got.status, got.stderr, exitUsage, want)
		}
	}
	for _, args := range [][]string{{"help"}, {"--help"}, {"help", "stores"}, {"unlock", "--help"}, {"completion", "bash"}} {
		if got := inside(t.Context(), args...); got.status != 0 || got.stdout == "" || got.stderr != "" {
			t.Errorf("%q: %+v", args, got)
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
	if got := inside(t.Context(), "ls"); got.status != 0 || !strings.HasPrefix(got.stdout, `{"name":"n",`) {
		t.Errorf("%+v", got)
	}
	if got := inside(t.Context(), "ls", "--json=false", "--prefix", "other:"); got.stdout != "" || got.stderr != "nobody holds a lock\n" {
		t.Errorf("%+v", got)
	}
	t.Setenv("DISTSYNC_QUIET", "true")
	if got := inside(t.Context(), "ls", "--json=false", "--prefix", "other:"); got.stdout != "" || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	t.Setenv("DISTSYNC_STORE_TIMEOUT", "soon\x1b")
	if got := inside(t.Context(), "ls"); got.status != exitUsage || !strings.Contains(got.stderr, `DISTSYNC_STORE_TIMEOUT: invalid argument "soon\x1b" for "--store-timeout" flag: time: `) {
		t.Errorf("%+v", got)
	}
	t.Setenv("DISTSYNC_STORE_TIMEOUT", "")
	t.Setenv("DISTSYNC_STORE", "redis://:secret@a:b:c")
	if got := inside(t.Context(), "ls"); got.status != exitUsage || strings.Contains(got.stderr, "secret") {
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

// Package modules_test checks which modules a program depends on if it uses this module.
package modules_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/seed951563bd/distsync"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command runs the go command, and returns its output.
func command(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	// A module that isn't in the cache is downloaded: a new clone's build hasn't needed them all.
	cmd.Env = append(os.Environ(), "GOSUMDB=off", "GOFLAGS=-mod=mod", "GOWORK=off")
	var failed strings.Builder
	cmd.Stderr = &failed
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, &failed)
	}
	return string(output)
}

// required returns the modules that the go.mod file of a folder requires.
func required(t *testing.T, dir string) map[string]bool {
	t.Helper()
	var mod struct{ Require []struct{ Path string } }
	must(t, json.Unmarshal([]byte(command(t, dir, "mod", "edit", "-json")), &mod))
	paths := make(map[string]bool)
	for _, r := range mod.Require {
		paths[r.Path] = true
	}
	return paths
}

// foreign returns the modules that nested modules of the repository require, such as those of
// adapters, commands and tools, and that the main module doesn't.
func foreign(t *testing.T, root string) map[string]bool {
	t.Helper()
	own, others := required(t, root), make(map[string]bool)
	must(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || entry.Name() != "go.mod":
			return err
		case filepath.Dir(path) != root:
			maps.Copy(others, required(t, filepath.Dir(path)))
		}
		return nil
	}))
	maps.DeleteFunc(others, func(path string, _ bool) bool { return own[path] || path == module })
	for _, known := range []string{
		"github.com/go-co-op/gocron/v2", "github.com/robfig/cron/v3",
		"github.com/caddyserver/certmagic", "github.com/pressly/goose/v3",
		"github.com/golang-migrate/migrate/v4",
		"github.com/spf13/cobra", "go.opentelemetry.io/otel", "honnef.co/go/tools",
	} {
		if !others[known] {
			t.Errorf("%s is needed by this module itself, or by nothing here", known)
		}
	}
	return others
}

// clients has the modules that some folders of public packages may import. All other packages need
// only the standard library.
var clients = map[string]string{
	"redisbackend":    "github.com/redis/go-redis/v9",
	"valkeybackend":   "github.com/valkey-io/valkey-go",
	"etcdbackend":     "go.etcd.io/etcd/client/v3",
	"postgresbackend": "github.com/jackc/pgx/v5",
}

// A program that uses dlock and one store doesn't depend on modules of adapters, of the command, of
// OpenTelemetry or of tools. The only store client that it depends on is that of its own store.
// This holds for each public package of the main module, together with dlock.
func TestWhatAProgramNeeds(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../../..")
	must(t, err)
	others := foreign(t, root)
	folders := public(t, root)
	for _, known := range []string{"membackend", "redisbackend", "valkeybackend", "etcdbackend",
		"postgresbackend", "quorumbackend", "lockdebug"} {
		if !slices.Contains(folders, known) {
			t.Errorf("%s isn't found, but %v", known, folders)
		}
	}
	for _, folder := range folders {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			gets := got(t, root, folder)
			client := clients[folder]
			for path := range gets {
				if others[path] || strings.HasPrefix(path, module+"/") || client == "" {
					t.Errorf("%s needs %s", folder, path)
				}
			}
			if client != "" && !gets[client] {
				t.Errorf("%s needs no %s, but %v", folder, client, slices.Sorted(maps.Keys(gets)))
			}
			for _, other := range clients {
				if gets[other] && other != client {
					t.Errorf("%s needs %s", folder, other)
				}
			}
		})
	}
}

// public returns the folders of packages that programs import, such as dlock and dlocktest.
func public(t *testing.T, root string) (folders []string) {
	t.Helper()
	for path := range strings.FieldsSeq(
		command(t, root, "list", "-mod=readonly", "-f",
			"{{if .GoFiles}}{{if ne .Name \"main\"}}{{.ImportPath}}{{end}}{{end}}", "./...")) {
		folder := strings.TrimPrefix(path, module+"/")
		if !strings.Contains("/"+folder, "/internal/") && !strings.HasPrefix(folder, "contract") &&
			!strings.HasPrefix(folder, "docs") {
			folders = append(folders, folder)
		}
	}
	return folders
}

// got returns the other modules that a program requires in go.mod after its build, or that are part
// of the program.
func got(t *testing.T, root, folder string) map[string]bool {
	t.Helper()
	dir := t.TempDir()
	mod := fmt.Sprintf("module example.com/program\n\ngo 1.26.0\n\nrequire %s v0.1.0\n\nreplace "+
		"%s => %s\n", module, module, root)
	must(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o600))
	program := fmt.Sprintf("package main\n\nimport (\n\t_ %q\n\t_ %q\n)\n\nfunc main() {}\n",
		module+"/dlock", module+"/"+folder)
	must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	built := command(t, dir, "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	paths := required(t, dir)
	for path := range strings.FieldsSeq(built) {
		paths[path] = true
	}
	delete(paths, module)
	delete(paths, "example.com/program")
	return paths
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// current returns the lines of the API listing for all packages in the repository that programs may
// import.
func current(root string) (map[string]bool, error) {
	lines := make(map[string]bool)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || entry.Name() != "go.mod":
			return err
		case private(filepath.ToSlash(strings.TrimPrefix(filepath.Dir(path), root))):
			return nil
		}
		packages, err := load(filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, line := range packages {
			lines[line+"\n"] = true
		}
		return nil
	})
	return lines, err
}

// private reports whether the packages in a folder are excluded from the API.
func private(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if slices.Contains([]string{"internal", "examples", "docs", "bench", "testdata"}, part) {
			return true
		}
	}
	return false
}

type listed struct {
	ImportPath, Name, Export string
	DepOnly                  bool
}

// load returns the lines of the API listing for a module's packages. It compiles them with the go
// command, and reads the export data.
func load(dir string) ([]string, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Name,Export,DepOnly",
		"./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	var packages []listed
	exports := make(map[string]string)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly && p.Name != "main" && p.Export != "" && !private(p.ImportPath) {
			packages = append(packages, p)
		}
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	compiled := importer.ForCompiler(token.NewFileSet(), "gc", open)
	var lines []string
	for _, p := range packages {
		pkg, err := compiled.Import(p.ImportPath)
		if err != nil {
			return nil, err
		}
		lines = append(lines, listing(pkg)...)
	}
	return lines, nil
}

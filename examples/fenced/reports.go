package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// A file can't refuse a stale writer, because any process that has opened it can write. So a holder
// never writes to a file that others read. Each token has its own file, which is complete when it
// appears. Readers take the file with the largest token, so the file of a stale writer is never the
// latest. A holder of the lock may remove the old files.

// writeReport writes the report of the holder with the given token.
func writeReport(folder string, token uint64, text string) error {
	name := filepath.Join(folder, fmt.Sprintf("report-%020d", token))
	if err := os.WriteFile(name+".part", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".part", name)
}

// latestReport returns the report with the largest token.
func latestReport(folder string) (string, error) {
	names, err := filepath.Glob(filepath.Join(folder, "report-????????????????????"))
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", errors.New("no report")
	}
	text, err := os.ReadFile(slices.Max(names))
	return string(text), err
}

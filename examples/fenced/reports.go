package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// A file can't refuse a stale writer: who has opened it writes. So nobody writes to a file that others read. Each
// token has a file of its own, which is complete when it appears, and readers take that of the largest. What a stale writer
// leaves is never the latest. (Let somebody with the lock remove the old ones.)

// writeReport writes the report of the holder with that token.
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

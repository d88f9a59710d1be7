package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// all returns the pictures as they are drawn now.
func all(t *testing.T) map[string]string {
	t.Helper()
	files, err := drawn(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// The pictures in docs are drawn from the text here, and the folder has no other files.
func TestPicturesAreDrawn(t *testing.T) {
	folder := filepath.Join("..", "..", "docs", "pictures")
	want := all(t)
	for name, svg := range want {
		if got, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(got) != svg {
			t.Errorf("%s is not as the text says (%v): go run ./internal/pictures", name, err)
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if want[entry.Name()] == "" {
			t.Errorf("nothing draws %s", entry.Name())
		}
	}
}

// Each picture is well-formed, and has a description for readers who can't see it.
func TestPicturesAreXML(t *testing.T) {
	for name, svg := range all(t) {
		decoder := xml.NewDecoder(strings.NewReader(svg))
		label := ""
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if start, ok := token.(xml.StartElement); ok && start.Name.Local == "svg" {
				for _, a := range start.Attr {
					if a.Name.Local == "aria-label" {
						label = a.Value
					}
				}
			}
		}
		if len(label) < 50 {
			t.Errorf("%s: its label is %q", name, label)
		}
	}
}

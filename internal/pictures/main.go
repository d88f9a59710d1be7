// Pictures draws the pictures of the documentation: sequence diagrams, and the tree of questions
// for choosing a store.
//
//	go run ./internal/pictures
//
// Their content is text, in pictures.go. The pictures are SVG files that follow the reader's light
// or dark colour scheme. A test fails if the files differ from the text.
package main

import (
	"log"
	"os"
	"path/filepath"
)

func main() {
	for name, svg := range drawn() {
		if err := os.WriteFile(filepath.Join("docs", "pictures", name), []byte(svg),
			0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// drawn returns the contents of the files by their names.
func drawn() map[string]string {
	files := make(map[string]string)
	for name, s := range sequences {
		files[name+".svg"] = s.draw()
	}
	files["stores.svg"] = stores.draw()
	return files
}

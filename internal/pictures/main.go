// Pictures draws the pictures of the documentation: who says what to whom as time goes down, and
// the tree of questions that leads to a store.
//
//	go run ./internal/pictures
//
// What they show is text, in pictures.go. They are SVG that follows the reader's light or dark
// colors. A test fails if the files differ from the text.
package main

import (
	"log"
	"os"
	"path/filepath"
)

func main() {
	for name, svg := range drawn() {
		if err := os.WriteFile(filepath.Join("docs", "pictures", name), []byte(svg), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// drawn returns the files by their names.
func drawn() map[string]string {
	files := make(map[string]string)
	for name, s := range sequences {
		files[name+".svg"] = s.draw()
	}
	files["stores.svg"] = stores.draw()
	return files
}

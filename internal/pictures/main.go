// Pictures draws the pictures of the documentation: sequence diagrams, the decision tree for
// choosing a store, and the dashboard for Grafana.
//
//	go run ./internal/pictures
//
// Their content comes from pictures.go and from the dashboard's JSON. The pictures are SVG files
// that follow the reader's light or dark color scheme. A test fails if the files are out of date.
package main

import (
	"log"
	"os"
	"path/filepath"
)

func main() {
	files, err := drawn(".")
	if err != nil {
		log.Fatal(err)
	}
	for name, svg := range files {
		if err := os.WriteFile(filepath.Join("docs", "pictures", name), []byte(svg),
			0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// drawn returns the contents of the picture files by name, for the repository at root.
func drawn(root string) (map[string]string, error) {
	files := make(map[string]string)
	for name, s := range sequences {
		files[name+".svg"] = s.draw()
	}
	files["stores.svg"] = stores.draw()
	d, err := readDashboard(root)
	if err != nil {
		return nil, err
	}
	files["dashboard.svg"] = d.draw()
	return files, nil
}

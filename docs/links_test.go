package docs_test

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	links    = regexp.MustCompile(`\]\(([^()\s]+)\)|(?:src|srcset)="([^"]+)"`)
	headings = regexp.MustCompile(`(?m)^#+ (.*)$`)
	anyBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	unslug   = regexp.MustCompile(`[^\pL\pN _-]`)
)

// Links of documents lead to a file that exists, and to a heading that is in it.
func TestLinks(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" || !d.Type().IsRegular() {
			return err
		}
		for _, m := range links.FindAllStringSubmatch(
			anyBlock.ReplaceAllString(contentOf(t, path), ""), -1) {
			link, err := url.Parse(m[1] + m[2])
			if err != nil || link.Scheme != "" {
				continue
			}
			target := path
			if link.Path != "" {
				target = filepath.Join(filepath.Dir(path), link.Path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to what isn't there: %v", path, err)
			} else if link.Fragment != "" &&
				!slices.Contains(slugs(contentOf(t, target)), link.Fragment) {
				t.Errorf("%s links to %s, where no heading is that", path, link)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A folder that README links to has a page of its own, where whoever follows the link arrives.
func TestFoldersHavePages(t *testing.T) {
	for _, m := range links.FindAllStringSubmatch(contentOf(t, "../README.md"), -1) {
		folder := filepath.Join("..", m[1])
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			continue
		}
		if _, err := os.Stat(filepath.Join(folder, "README.md")); err != nil {
			t.Errorf("README links to %s, which has no page: %v", m[1], err)
		}
	}
}

// slugs returns the names that a page's headings have in links.
func slugs(page string) (slugs []string) {
	for _, m := range headings.FindAllStringSubmatch(anyBlock.ReplaceAllString(page, ""), -1) {
		slugs = append(slugs, strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(m[1]), ""),
			" ", "-"))
	}
	return slugs
}

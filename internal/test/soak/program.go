package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// A program implements [testservers.TB] outside of a test.
type program struct {
	dir string

	mu       sync.Mutex
	dirs     int
	cleanups []func()
}

func newProgram() (*program, error) {
	dir, err := os.MkdirTemp("", "soak")
	return &program{dir: dir}, err
}

// end runs all cleanups. It is called before the program ends.
func (p *program) end() {
	for {
		p.mu.Lock()
		n := len(p.cleanups)
		if n == 0 {
			p.mu.Unlock()
			os.RemoveAll(p.dir)
			return
		}
		f := p.cleanups[n-1]
		p.cleanups = p.cleanups[:n-1]
		p.mu.Unlock()
		f()
	}
}

func (p *program) Helper() {}

func (p *program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *program) TempDir() string {
	p.mu.Lock()
	p.dirs++
	dir := filepath.Join(p.dir, strconv.Itoa(p.dirs))
	p.mu.Unlock()
	if err := os.Mkdir(dir, 0o700); err != nil {
		p.Fatal(err)
	}
	return dir
}

// Fatal ends the program because of a problem with its environment.
func (p *program) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	p.end()
	os.Exit(2)
}

func (p *program) Fatalf(format string, args ...any) { p.Fatal(fmt.Sprintf(format, args...)) }
func (p *program) Skip(args ...any)                  { p.Fatal(args...) }
func (p *program) Skipf(format string, args ...any)  { p.Fatalf(format, args...) }

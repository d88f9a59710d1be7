package testservers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// building is held while Java programs are built.
var building sync.Mutex

// RedissonClasspath returns the class path of the Java programs in dir, the folder
// contract/redisson, with the given version of Redisson. It builds the programs if they have
// changed since the last build. It downloads nothing: all files that it needs must already be in
// Maven's local repository.
func RedissonClasspath(dir, version string) (string, error) {
	building.Lock()
	defer building.Unlock()
	target := filepath.Join(dir, "target", version)
	jars := filepath.Join(target, "classpath") // the last file that the build writes
	built, err := newerThanAll(jars, filepath.Join(dir, "pom.xml"),
		filepath.Join(dir, "src", "main", "java", "*.java"))
	if err != nil {
		return "", err
	}
	if !built {
		cmd := exec.Command("mvn", "--offline", "--quiet", "--batch-mode", "-Dstyle.color=never",
			"-Dredisson.version="+version)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("the Java programs cannot be built; "+
				"`mvn -q -B -f contract/redisson -Dredisson.version=%s` downloads what that "+
				"takes: %w\n%s", version, err, out)
		}
	}
	text, err := os.ReadFile(jars)
	return filepath.Join(target, "classes") + string(filepath.ListSeparator) + string(text), err
}

// newerThanAll reports whether a file exists, and is newer than all files that match the patterns.
func newerThanAll(file string, patterns ...string) (bool, error) {
	made, err := os.Stat(file)
	if err != nil {
		return false, nil
	}
	for _, pattern := range patterns {
		sources, err := filepath.Glob(pattern)
		if err != nil {
			return false, err
		}
		for _, source := range sources {
			if info, err := os.Stat(source); err != nil || !made.ModTime().After(info.ModTime()) {
				return false, err
			}
		}
	}
	return true, nil
}

package main

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// redissonName is the name of the contender that runs as a Java program, class Party in
// contract/redisson.
const redissonName = "Redisson"

const redissonVersion = "4.7.0"

// isJava reports whether a contender's processes are Java programs.
func (c contender) isJava() bool { return strings.HasPrefix(c.name, redissonName) }

// findJava sets l.java. It returns an error if this machine can't run the Java programs.
func (l *lab) findJava() error {
	_, err := exec.LookPath("java")
	if err == nil {
		l.java, err = testservers.RedissonClasspath("../contract/redisson", redissonVersion)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", redissonName, err)
	}
	l.versions[redissonName+" "+redissonVersion] = true
	return nil
}

// javaCommand returns the command that carries out a trial in Java.
func (l *lab) javaCommand(t trial) (*exec.Cmd, error) {
	args := []string{
		// for a fast start and a small heap
		"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", l.java, "Party",
		t.Job, t.Addr, t.Name, millis(t.Lease),
	}
	switch t.Job {
	case jobLoop:
		args = append(args, millis(t.Duration), millis(t.Inside), t.Shared,
			string(contenderBy(t.Contender).kind), strconv.Itoa(t.Goroutines),
			strconv.Itoa(mostInside), strconv.Itoa(t.Count))
	case jobAwait:
		args = append(args, strconv.Itoa(t.Count))
	default:
		return nil, fmt.Errorf("no %s in Java", t.Job)
	}
	return exec.Command("java", args...), nil
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

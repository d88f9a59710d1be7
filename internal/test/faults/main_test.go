package faults_test

import (
	"flag"
	"os"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(childOrder); order != "" {
		os.Exit(runChild(order))
	}
	flag.Parse()
	// Tests here mostly wait for leases to run out, whatever the number of cores.
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	wiretest.VerifyTestMain(m, wiretest.ValkeyLingers()...)
}

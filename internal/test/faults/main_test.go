package faults_test

import (
	"os"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(childOrder); order != "" {
		os.Exit(runChild(order))
	}
	wiretest.SideBySide(12)
	wiretest.VerifyTestMain(m, wiretest.ValkeyLingers()...)
}

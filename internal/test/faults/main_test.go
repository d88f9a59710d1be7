package faults_test

import (
	"os"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/apart"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(childOrder); order != "" {
		os.Exit(runChild(order))
	}
	apart.SideBySide(16)
	wiretest.VerifyTestMain(m, wiretest.ValkeyLingers()...)
}

package redisson_test

import (
	"os"
	"testing"

	"github.com/seed951563bd/distsync/internal/test/apart"
)

func TestMain(m *testing.M) {
	apart.SideBySide(12)
	os.Exit(m.Run())
}

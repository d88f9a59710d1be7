package history_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/internal/test/apart"
)

func TestMain(m *testing.M) {
	apart.SideBySide(6)
	goleak.VerifyTestMain(m)
}

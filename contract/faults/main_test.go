package faults_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, wiretest.ValkeyLingers()...) }

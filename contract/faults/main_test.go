package faults_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestMain(m *testing.M) { wiretest.VerifyTestMain(m, wiretest.ValkeyLingers()...) }

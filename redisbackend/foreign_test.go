package redisbackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestForeign(t *testing.T) {
	wiretest.Foreign(t, this, testservers.Redis(t))
}

func TestForeignAfterRenewal(t *testing.T) {
	wiretest.ForeignAfterRenewal(t, this, testservers.Redis(t))
}

func TestFullMemory(t *testing.T) {
	wiretest.FullMemory(t, this, testservers.Redis(t))
}

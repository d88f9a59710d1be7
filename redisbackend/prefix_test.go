package redisbackend_test

import (
	"testing"

	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/internal/test/wiretest"
)

func TestPrefix(t *testing.T) {
	wiretest.Prefix(t, this, testservers.Redis(t))
}

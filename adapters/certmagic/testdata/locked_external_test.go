package certmagic_test

import (
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/caddyserver/certmagic"
	certmagiclock "github.com/seed951563bd/distsync/adapters/certmagic"
	"github.com/seed951563bd/distsync/backend"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/redisbackend"
)

func locked(s certmagic.Storage) certmagic.Storage { return certmagic.Locked(s) }

func init() {
	var store backend.Backend = membackend.New()
	if addr := os.Getenv("CERTMAGIC_REDIS"); addr != "" {
		store = redisbackend.New(redis.NewClient(&redis.Options{Addr: addr}))
	}
	client := dlock.New(store)
	certmagic.Locked = func(s certmagic.Storage) certmagic.Storage {
		return certmagiclock.New(s, client)
	}
	certmagic.Unlocked = func(s certmagic.Storage) certmagic.Storage {
		return s.(*certmagiclock.Storage).Storage
	}
}

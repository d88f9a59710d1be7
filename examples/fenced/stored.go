package main

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/redisbackend"
)

// stored is an account in Redis. Redis has no conditional write, so the account is written through
// a fence, which is another key that stores the largest token.
type stored struct {
	rdb   *redis.Client
	store *redisbackend.Backend
	key   string
}

// open claims the key for the token, and then reads the balance. After the claim, earlier holders
// of the lock can't write, not even between this read and the write that is based on it.
func (s stored) open(ctx context.Context, token uint64) (int, error) {
	if err := s.store.Fence(token).Claim(ctx, s.key); err != nil {
		return 0, err
	}
	return s.rdb.Get(ctx, s.key).Int()
}

func (s stored) write(ctx context.Context, token uint64, balance int) error {
	return s.store.Fence(token).Set(ctx, s.key, strconv.Itoa(balance), 0)
}

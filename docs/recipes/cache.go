package recipes

import (
	"context"
	"time"

	"github.com/seed951563bd/distsync/dlock"
)

// A cache is a store that all replicas read, such as Redis or a database table.
type cache interface {
	Get(ctx context.Context, key string) (value []byte, ok bool, err error)
	Set(ctx context.Context, key string, value []byte, ttl time.Duration) error
}

func ratesWrong(
	ctx context.Context, c cache, fetch func(context.Context) ([]byte, error),
) ([]byte, error) {
	if rates, ok, err := c.Get(ctx, "rates"); ok || err != nil {
		return rates, err
	}
	rates, err := fetch(ctx)
	if err != nil {
		return nil, err
	}
	return rates, c.Set(ctx, "rates", rates, time.Minute)
}

func ratesOnce(
	ctx context.Context, client *dlock.Client, c cache, fetch func(context.Context) ([]byte, error),
) ([]byte, error) {
	if rates, ok, err := c.Get(ctx, "rates"); ok || err != nil {
		return rates, err
	}
	_, err := client.Locker("fetch:rates").Once(ctx, time.Second, func(ctx context.Context) error {
		rates, err := fetch(ctx)
		if err != nil {
			return err
		}
		return c.Set(ctx, "rates", rates, time.Minute)
	}, dlock.Wait(10*time.Second))
	if err != nil {
		return nil, err
	}
	if rates, ok, err := c.Get(ctx, "rates"); ok || err != nil {
		return rates, err
	}
	return fetch(ctx) // the cache has already dropped the rates
}

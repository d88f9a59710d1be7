package docs_test

import (
	"bytes"
	"context"
	"errors"
	"log"
	"os"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/internal/test/testservers"
	"github.com/seed951563bd/distsync/redisbackend"
)

func TestFencing(t *testing.T) {
	ctx := t.Context()
	rdb := redis.NewClient(&redis.Options{Addr: testservers.Redis(t).Addr})
	defer rdb.Close()
	store := redisbackend.New(rdb)
	client := dlock.New(store)
	defer client.Close()
	check(t, rdb.HSet(ctx, "account:7", "balance", 100).Err())
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)

	refused := 0
	deposit := func() {
		err := client.FencedLocker("lock:account:7").Do(ctx, func(ctx context.Context) error {
			token, _ := dlock.Token(ctx)
			fence := store.Fence(token) // store := redisbackend.New(rdb)
			if err := fence.Claim(ctx, "account:7"); err != nil {
				return err // a later holder has claimed it
			}
			// The read comes after the claim, not before.
			balance, err := rdb.HGet(ctx, "account:7", "balance").Int()
			if err != nil {
				return err
			}
			err = fence.HSet(ctx, "account:7", "balance", strconv.Itoa(balance+10))
			if errors.Is(err, dlock.ErrLost) {
				log.Print("a later holder has claimed the account: nothing was written")
			}
			return err
		})
		if errors.Is(err, dlock.ErrLost) {
			refused++
		} else {
			check(t, err)
		}
	}

	deposit()
	check(t, store.Fence(1<<63).Claim(ctx, "account:7")) // a holder far in the future
	deposit()
	if got := rdb.HGet(ctx, "account:7", "balance").Val(); got != "110" {
		t.Errorf("the balance is %s", got)
	}
	if refused != 1 || logged.Len() > 0 {
		t.Errorf("the claim is refused %d times, and logged is %q", refused, logged.String())
	}
}

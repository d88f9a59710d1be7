package oteldlock_test

import (
	"context"
	"log"
	"strings"
	"testing"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
	"github.com/seed951563bd/distsync/oteldlock"
)

// The code of README runs as it is printed.
func TestReadme(t *testing.T) {
	store := membackend.New()

	trace, err := oteldlock.New() // with the global providers, unless options name others
	if err != nil {
		log.Fatal(err)
	}
	client := dlock.New(store, dlock.WithTrace(trace)) // such as redisbackend.New(rdb)

	defer client.Close()
	if err := client.Locker("order:42").Do(t.Context(), func(context.Context) error {
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestReadmeNameLabel(t *testing.T) {
	byGroup := oteldlock.WithNameLabel(func(name string) string {
		group, _, _ := strings.Cut(name, ":")
		return group // of order:42, order
	})
	trace, err := oteldlock.New(byGroup)

	if trace == nil || err != nil {
		t.Errorf("made %v, %v", trace, err)
	}
}

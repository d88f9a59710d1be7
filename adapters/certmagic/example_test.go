package certmagiclock_test

import (
	"context"
	"fmt"
	"os"

	"github.com/caddyserver/certmagic"

	certmagiclock "github.com/seed951563bd/distsync/adapters/certmagic"
	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/membackend"
)

// Each replica does this, with a folder and a store of locks that they share: here that is memory.
// Then it goes on as ever: certmagic.HTTPS, say.
func Example() {
	folder, err := os.MkdirTemp("", "certificates")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	client := dlock.New(membackend.New())
	defer client.Close()
	storage := certmagiclock.New(&certmagic.FileStorage{Path: folder}, client)
	certmagic.Default.Storage = storage

	// certmagic does this while it obtains a certificate:
	ctx := context.Background()
	if err := storage.Lock(ctx, "issue_cert_example.com"); err != nil {
		fmt.Println(err)
		return
	}
	locked, err := storage.TryLock(ctx, "issue_cert_example.com")
	fmt.Println("another at the same time:", locked, err)
	fmt.Println("unlock:", storage.Unlock(ctx, "issue_cert_example.com"))
	// Output:
	// another at the same time: false <nil>
	// unlock: <nil>
}

package recipes

import (
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"net/url"

	"github.com/seed951563bd/distsync/dlock"
)

func lockNameWrong(tenant, order string) string {
	return fmt.Sprintf("lock:%s:%s", tenant, order)
}

// lockName is the name for an order of a tenant. No two have the same, whatever they are called.
func lockName(tenant, order string) string {
	return "lock:orders:" + part(tenant) + ":" + part(order)
}

// part is a text of somebody else as a part of a name: without colons and braces, and not long.
func part(text string) string {
	if len(text) > 100 {
		return fmt.Sprintf("sha256=%x", sha256.Sum256([]byte(text)))
	}
	return url.QueryEscape(text) // which leaves no = either
}

// rowLock is the lock of a row, which some other rows share: there are a thousand, for any number of rows.
func rowLock(client *dlock.Client, row string) *dlock.Locker {
	n := crc32.ChecksumIEEE([]byte(row)) % 1000 // not hash/maphash: each process has its own
	return client.Locker(fmt.Sprintf("lock:rows:%d", n))
}

// renamed is the lock of an order for as long as programs run that know it by its old name.
func renamed(client *dlock.Client, tenant, order string) *dlock.MultiLocker {
	before := client.Locker(lockNameWrong(tenant, order))
	return dlock.All(before, client.Locker(lockName(tenant, order)))
}

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

// lockName returns the name of an order's lock. Two orders never have the same name, whatever their
// texts are.
func lockName(tenant, order string) string {
	return "lock:orders:" + part(tenant) + ":" + part(order)
}

// part returns a text from outside as a part of a name, without colons and braces, and not long.
func part(text string) string {
	if len(text) > 100 {
		return fmt.Sprintf("sha256=%x", sha256.Sum256([]byte(text)))
	}
	return url.QueryEscape(text) // which also escapes =
}

// rowLock returns the lock of a row. A thousand locks serve any number of rows.
func rowLock(client *dlock.Client, row string) *dlock.Locker {
	n := crc32.ChecksumIEEE([]byte(row)) % 1000 // not hash/maphash, whose seed each process chooses
	return client.Locker(fmt.Sprintf("lock:rows:%d", n))
}

// renamed returns a lock that locks an order's old and new names together. Use it while programs
// that know only the old name still run.
func renamed(client *dlock.Client, tenant, order string) *dlock.MultiLocker {
	before := client.Locker(lockNameWrong(tenant, order))
	return dlock.All(before, client.Locker(lockName(tenant, order)))
}

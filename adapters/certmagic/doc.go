// Package certmagiclock gives any storage of [github.com/caddyserver/certmagic] locks that work across machines.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//
//		"github.com/caddyserver/certmagic"
//		"github.com/redis/go-redis/v9"
//
//		certmagiclock "github.com/seed951563bd/distsync/adapters/certmagic"
//		"github.com/seed951563bd/distsync/dlock"
//		"github.com/seed951563bd/distsync/redisbackend"
//	)
//
//	func main() {
//		rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//		client := dlock.New(redisbackend.New(rdb))
//		defer client.Close()
//		files := &certmagic.FileStorage{Path: "/mnt/shared/certificates"} // or any other storage
//		certmagic.Default.Storage = certmagiclock.New(files, client)
//		err := certmagic.HTTPS([]string{"example.com"}, http.FileServer(http.Dir(".")))
//		log.Print(err)
//	}
//
// Replicas that share a storage (files on NFS, a bucket, a database) must not all ask the CA for the
// same certificate. So certmagic has the storage lock a name. Many storages do that badly: with files
// that stay when a process dies, or that two processes both find stale. The locks of a [Storage] are
// those of dlock, in another store: while a replica obtains a certificate, its lock is renewed. If it
// dies the lock ends with its lease (30 s, see [dlock.WithLease]), and the next replica goes on.
// Certificates, keys and everything else stay where they are.
//
// While the store of locks is away no certificate is obtained or renewed: certmagic waits for the lock,
// and tries again. A replica that loses its lock, because the store was away for longer than the lease,
// goes on with its attempt, since certmagic can't be told. Before the next attempt it takes the lock
// again, or fails: see [Storage.RenewLockLease]. So two replicas may both ask the CA, and the storage
// keeps the last certificate. Clocks make no difference.
//
// A program that ends during an attempt calls certmagic.CleanUpOwnLocks before the client is closed.
// Otherwise the others wait until the lease is over.
//
// All replicas must lock in the same way: this and the storage's own locks don't exclude each other.
package certmagiclock

// Package certmagiclock adds distributed locks to any storage of
// [github.com/caddyserver/certmagic].
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
// Replicas that share a storage (files on NFS, a bucket, a database) must not all ask the CA for
// the same certificate. So certmagic asks the storage to lock a name. Many storages lock in an
// unsafe way: lock files remain when a process dies, or two processes take over the same lock at
// once. A [Storage] uses the locks of a [dlock.Client] instead, which are in a different store.
// While a replica obtains a certificate, its lock is renewed. If the replica dies, the lock ends
// with its lease (30 s, see [dlock.WithLease]), and the next replica continues. Certificates, keys
// and everything else stay where they are.
//
// While the lock store is down, no certificate is obtained or renewed: certmagic waits for the
// lock, and tries again. A replica may lose its lock, for example if the store is down for longer
// than the lease. It continues its attempt, because a storage can't notify certmagic. Before the
// next attempt it acquires the lock again, or fails (see [Storage.RenewLockLease]). So two replicas
// may both ask the CA, and the storage keeps the certificate that was stored last. The clocks of
// the replicas need not agree.
//
// A program that ends during an attempt must call certmagic.CleanUpOwnLocks before the client is
// closed. Otherwise the other replicas wait until the lease expires.
//
// All replicas must use this package, since its locks and the storage's own locks don't exclude
// each other.
package certmagiclock

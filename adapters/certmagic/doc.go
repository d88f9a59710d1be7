// Package certmagiclock gives any storage of [github.com/caddyserver/certmagic] locks that work across machines.
//
//	import certmagiclock "github.com/seed951563bd/distsync/adapters/certmagic"
//
//	client := dlock.New(redisbackend.New(rdb))
//	certmagic.Default.Storage = certmagiclock.New(certmagic.Default.Storage, client)
//
// Replicas of a service that share a storage (files on NFS, a bucket, a database) must not all ask the CA for the same certificate, and certmagic has the
// storage lock a name for that. Many storages do that badly: with files that stay when a process dies, or that two processes both find stale. The
// locks of a [Storage] are those of dlock, in another store: while a replica obtains a certificate, its lock is renewed, and if it dies the lock ends with its
// lease (see [dlock.WithLease]), and the next replica goes on. Certificates, keys and everything else stay where they are.
//
// All replicas must lock in the same way: while some still use the storage's own locks, these and those don't exclude each other.
package certmagiclock

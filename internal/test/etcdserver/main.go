// Command etcdserver is the etcd server that tests run, with log segments of 4 MB. By default, etcd
// reserves two segments of 64 MB when it starts. Most tests need only a few kilobytes, and they run
// dozens of servers side by side.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

func main() {
	wal.SegmentSizeBytes = 4 << 20
	etcdmain.Main(os.Args)
}

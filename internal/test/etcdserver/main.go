// Command etcdserver is the etcd server that tests run, with logs of 4 MB: etcd takes the space of two of its usual ones at once,
// 128 MB, and most tests are over before it has filled some kilobytes of that. They run dozens of servers side by side.
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

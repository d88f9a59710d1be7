package redisson

import (
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// A Dialect says how releases are made known. All who share locks must agree on it. The zero value
// is for PUBLISH.
type Dialect struct {
	// Sharded says that releases are published with SPUBLISH, which a Redis Cluster keeps within
	// the shard that has the slot, and not with PUBLISH. Who listens uses SSUBSCRIBE then.
	Sharded bool
}

// Release gives one hold back. [ParseRelease] reads its reply.
func (d Dialect) Release(req backend.ReleaseRequest) Call {
	return Call{
		d.script(releaseScript, shardedReleaseScript),
		[]string{req.Name, Channel(req.Name)},
		[]string{unlockMessage, millis(req.Lease), req.Owner},
	}
}

// ForceRelease frees a lock, whoever holds it. The script deletes a key of any type: ask first
// whether it is a hash. [ParseForceRelease] reads its reply.
func (d Dialect) ForceRelease(req backend.ForceReleaseRequest) Call {
	return Call{
		d.script(forceReleaseScript, shardedForceReleaseScript),
		[]string{req.Name, Channel(req.Name)},
		[]string{unlockMessage},
	}
}

func (d Dialect) script(plain, sharded Script) Script {
	if d.Sharded {
		return sharded
	}
	return plain
}

// The scripts with SPUBLISH differ in nothing else.
var (
	shardedReleaseScript      = sharded(releaseText)
	shardedForceReleaseScript = sharded(forceReleaseText)
)

func sharded(text string) Script {
	return newScript(strings.ReplaceAll(text, "'publish'", "'spublish'"))
}

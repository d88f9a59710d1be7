package redisson

import (
	"fmt"
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
	return call(d.script(releaseScript, shardedReleaseScript), 2,
		req.Name, Channel(req.Name), unlockMessage, millis(req.Lease), req.Owner)
}

// ForceRelease frees a lock, whoever holds it. What is no lock it leaves alone. [ParseForceRelease] reads
// its reply.
func (d Dialect) ForceRelease(req backend.ForceReleaseRequest) Call {
	return call(d.script(forceReleaseScript, shardedForceReleaseScript), 2,
		req.Name, Channel(req.Name), unlockMessage)
}

func (d Dialect) script(plain, sharded Script) Script {
	if d.Sharded {
		return sharded
	}
	return plain
}

// CheckSharded reads the answer to PUBSUB SHARDNUMSUB, nil or an error with its kind, where text is
// the server's error reply inside it. It returns nil if nothing speaks against a sharded dialect, or
// an error: of kind [backend.Refused] if the server is too old for it.
func CheckSharded(text string, err error) error {
	switch code, rest, _ := strings.Cut(strings.ToLower(text), " "); {
	case code == "noperm":
		return nil // it doesn't say, then
	case strings.HasPrefix(rest, "unknown subcommand"):
		return &backend.Error{Kind: backend.Refused, Err: fmt.Errorf("WithShardedPubSub needs Redis 7 or Valkey: %w", err)}
	default:
		return err
	}
}

// The scripts with SPUBLISH differ in nothing else.
var (
	shardedReleaseScript      = sharded(releaseText)
	shardedReleaseAgainScript = sharded(releaseAgainText)
	shardedKeepScript         = sharded(keepWholeText)
	shardedForceReleaseScript = sharded(forceReleaseText)
)

func sharded(text string) Script {
	return newScript(strings.ReplaceAll(text, "'publish'", "'spublish'"))
}

package redisson

import (
	"fmt"
	"strings"

	"github.com/seed951563bd/distsync/backend"
)

// A Dialect determines how releases are published. All programs that share locks must use the same
// Dialect. The zero value uses PUBLISH.
type Dialect struct {
	// Sharded reports whether releases are published with SPUBLISH instead of PUBLISH. A Redis
	// Cluster propagates such messages only within the shard that serves the slot. The listeners
	// then use SSUBSCRIBE.
	Sharded bool
}

// Release releases one hold. [ParseRelease] reads its reply.
func (d Dialect) Release(req backend.ReleaseRequest) Call {
	return call(d.script(releaseScript, shardedReleaseScript), 2,
		req.Name, Channel(req.Name), unlockMessage, millis(req.Lease), req.Owner)
}

// ForceRelease frees a lock, regardless of its holder. It doesn't change a key that isn't a lock.
// [ParseForceRelease] reads its reply.
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

// CheckSharded checks the answer to PUBSUB SHARDNUMSUB. err is the error of that command or nil,
// and text is the server's error reply. If the server is too old for sharded channels, CheckSharded
// returns an error of kind [backend.Refused]. If the user has no permission to ask, it returns nil.
func CheckSharded(text string, err error) error {
	switch code, rest, _ := strings.Cut(strings.ToLower(text), " "); {
	case code == "noperm":
		return nil // the user has no permission to ask
	case strings.HasPrefix(rest, "unknown subcommand"):
		return &backend.Error{
			Kind: backend.Refused, Err: fmt.Errorf("WithShardedPubSub needs Redis 7 or Valkey: %w",
				err),
		}
	default:
		return err
	}
}

// These scripts publish with SPUBLISH. Otherwise they are the same as those that use PUBLISH.
var (
	shardedReleaseScript      = sharded(releaseText)
	shardedReleaseAgainScript = sharded(releaseAgainText)
	shardedKeepScript         = sharded(keepWholeText)
	shardedForceReleaseScript = sharded(forceReleaseText)
)

func sharded(text string) Script {
	return newScript(strings.ReplaceAll(text, "'publish'", "'spublish'"))
}

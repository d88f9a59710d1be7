package redisson

import "github.com/seed951563bd/distsync/backend"

// countWaiting asks how many connections to the server listen to the channel of a lock. It is sent right behind
// a release. AddWaiting reads its reply. In a cluster it is a script: clients know of one, and not of the
// plain command, which node is to be asked, and follow where a slot has moved.
func (d Dialect) countWaiting(channel string, cluster bool) Command {
	subcommand := "NUMSUB"
	if d.Sharded {
		subcommand = "SHARDNUMSUB"
	}
	if cluster {
		return call(countWaitingScript, 1, channel, subcommand).byText()
	}
	return Command{Verb: "PUBSUB", Args: []string{subcommand, channel}}
}

var countWaitingScript = newScript(`return redis.call('pubsub', ARGV[1], KEYS[1]);`)

// AddWaiting adds to the result of a release what the reply to countWaiting, or the error in its place,
// says of clients other than this one that wait. Of those that are counted, between least and most are
// this client's own. In a cluster whose channels are not sharded others listen by way of nodes that
// were not asked: there it is known that some wait, never that none does.
func (d Dialect) AddWaiting(res *backend.ReleaseResult, reply any, err error, cluster bool, least, most int) {
	n, odd := parseNumSub(reply)
	switch {
	case err != nil || odd != nil:
	case n > most:
		res.Counted, res.Waiting = true, n-most
	case n <= least && (d.Sharded || !cluster):
		res.Counted = true
	}
}

// parseNumSub reads the reply to PUBSUB NUMSUB with one channel.
func parseNumSub(reply any) (int, error) {
	words, ok := reply.([]any)
	if ok && len(words) == 2 {
		if n, ok := words[1].(int64); ok && n >= 0 {
			return int(n), nil
		}
	}
	return 0, unexpected("PUBSUB NUMSUB", reply)
}

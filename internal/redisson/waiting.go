package redisson

import "github.com/seed951563bd/distsync/backend"

// countWaiting returns the command that asks how many connections to the server listen to a lock's
// channel. It is sent right after a release, and AddWaiting reads its reply. PUBSUB has no key by
// which a client library could find the right node of a cluster. So in a cluster, the command runs
// a script with the channel as its key, and the library finds the node of that key, even after a
// slot has moved.
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

// AddWaiting reads the reply to countWaiting's command, and records in res how many other clients
// wait. If err isn't nil, or the reply is malformed, AddWaiting does nothing. The parameters least
// and most bound the number of counted connections that belong to this client. In a cluster without
// sharded channels, clients may listen at nodes other than the one that was asked. Then a count
// above most still shows that others wait, but a low count doesn't show that none do.
func (d Dialect) AddWaiting(
	res *backend.ReleaseResult, reply any, err error, cluster bool, least, most int,
) {
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

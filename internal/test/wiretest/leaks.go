package wiretest

import "go.uber.org/goleak"

// ValkeyLingers are the goroutines of valkey-go that outlive their client: that of a cluster which has
// heard of a change looks into it some time later, and closes what it needs no more after some seconds.
func ValkeyLingers() []goleak.Option {
	const valkey = "github.com/valkey-io/valkey-go."
	return []goleak.Option{
		goleak.IgnoreAnyFunction(valkey + "(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction(valkey + "(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction(valkey + "(*clusterClient).redirectOrNew.func1"),
	}
}

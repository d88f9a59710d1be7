package wiretest

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// VerifyTestMain is [goleak.VerifyTestMain] with patience: that looks for less than a second, and clients
// of a server that is gone may sleep for one before they see that they are closed.
func VerifyTestMain(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(settling{m, options}, options...)
}

// settling is a set of tests that ends when the goroutines of its last tests have.
type settling struct {
	*testing.M
	options []goleak.Option
}

func (s settling) Run() int {
	code := s.M.Run()
	for end := time.Now().Add(testservers.Patience); goleak.Find(s.options...) != nil && time.Now().Before(end); {
	}
	return code
}

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

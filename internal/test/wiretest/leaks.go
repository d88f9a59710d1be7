package wiretest

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed951563bd/distsync/internal/test/testservers"
)

// VerifyTestMain is [goleak.VerifyTestMain] with more patience. goleak waits for less than a
// second. If a server is gone, its clients may sleep for a second before they notice that they are
// closed.
func VerifyTestMain(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(settling{m, options}, options...)
}

// settling runs the tests, and then waits until no goroutine is left.
type settling struct {
	*testing.M
	options []goleak.Option
}

func (s settling) Run() int {
	code := s.M.Run()
	for end := time.Now().Add(testservers.Patience); goleak.Find(s.options...) != nil &&
		time.Now().Before(end); {
	}
	return code
}

// ValkeyLingers returns options that ignore the goroutines of valkey-go that outlive their client.
// A cluster client handles topology changes with a delay, and closes unused connections after some
// seconds.
func ValkeyLingers() []goleak.Option {
	const valkey = "github.com/valkey-io/valkey-go."
	return []goleak.Option{
		goleak.IgnoreAnyFunction(valkey + "(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction(valkey + "(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction(valkey + "(*clusterClient).redirectOrNew.func1"),
	}
}

package valkeybackend

// WithContextValues makes the client send every step on its own, with the context values of its
// caller. By default, on one server, the steps of many goroutines share round trips, and a wrapper
// around the client doesn't see the callers' values. For example, it can't find the trace of a
// call.
//
// Even with this option, some steps have no caller: renewals, releases and retries in the
// background, and the steps of a plain Lock and Unlock. So a wrapper must not use the context to
// change the name of a lock, or to choose its server.
func WithContextValues() Option {
	return func(o *options) { o.apart = true }
}

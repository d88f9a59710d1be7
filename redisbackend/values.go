package redisbackend

// WithContextValues sends every step by itself, with the context values of its caller. By default,
// on one server, the steps of many goroutines share round trips, and hooks of the client see no
// caller's values: no trace, for instance, that a span could belong to.
//
// Some steps have no caller even so: renewals, take-backs and retries in the background, and those
// of a plain Lock and Unlock. So a hook must not choose by its context under which name a lock
// goes, or to which server.
func WithContextValues() Option {
	return func(o *options) { o.apart = true }
}

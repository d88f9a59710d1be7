package valkeybackend

// WithContextValues sends every step by itself, with the context values of whoever asks for it. By
// default, on one server, the steps of many goroutines share round trips, and a wrapper around the
// client sees nobody's values, whether a step goes together with others or not: no trace, for instance,
// that a span could belong to.
//
// Some steps are nobody's all the same: renewals, what is taken back or tried again in the background,
// and those of a plain Lock and Unlock. So a wrapper must not choose by its context under which name a
// lock goes, or to which server.
func WithContextValues() Option {
	return func(o *options) { o.apart = true }
}

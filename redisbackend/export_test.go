package redisbackend

import "time"

// CheckEvery makes a session check a silent connection more often than users need.
func CheckEvery(d time.Duration) Option {
	return func(o *options) { o.checkEvery = d }
}

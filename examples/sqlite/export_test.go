package sqlite

// No test causes a power failure, and waiting for a busy disk would make the tests slow.
func init() { synchronous = "OFF" }

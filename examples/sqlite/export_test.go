package sqlite

// No test cuts the power, and a disk that others use would make them slow.
func init() { synchronous = "OFF" }

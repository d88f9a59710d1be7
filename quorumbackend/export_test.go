package quorumbackend

import "time"

// Home returns the number of the store that is asked first for a name.
var Home = home

// BePatient has every store waited for, however busy the machine is. It is for a process of its own.
func BePatient() { leastPatience = time.Minute }

package quorumbackend

// Home returns the number of the store that is asked first for a name.
var Home = home

// Package quorumbackend keeps locks in several independent stores at once.
package quorumbackend

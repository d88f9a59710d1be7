// Package faults contains only tests: the table of faults that locks must withstand on every store.
// The faults themselves come from package [github.com/seed951563bd/distsync/contract/faults].
package faults

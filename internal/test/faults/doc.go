// Package faults has no code: its tests are the table of faults that locks are held against, on every
// store. What makes the faults is package [github.com/seed951563bd/distsync/contract/faults].
package faults

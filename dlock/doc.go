// Package dlock is distributed locks.
package dlock

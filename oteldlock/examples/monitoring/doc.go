// Package monitoring has only a test: the alert rules and the dashboard beside it, and the alarms
// in docs, ask for what oteldlock exports, in a language that Prometheus understands.
package monitoring

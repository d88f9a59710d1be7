// Package monitoring has only a test. It checks the alert rules and the dashboard beside it, and
// the alarms in docs: Prometheus can parse them, and oteldlock exports their metrics.
package monitoring

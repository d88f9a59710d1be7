// Package monitoring contains only a test. It checks the alert rules and the dashboard in this
// directory, and the alarms in docs: Prometheus can parse them, and oteldlock exports their
// metrics.
package monitoring

// Package monitoring contains only a test. It checks that Prometheus can parse the alert rules and
// the dashboard in this directory and the alarms in docs, and that oteldlock exports the metrics
// that they use.
package monitoring

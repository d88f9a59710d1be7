module github.com/seed951563bd/distsync/docs/recipes

go 1.26.0

replace github.com/seed951563bd/distsync => ../../

replace github.com/seed951563bd/distsync/adapters/gocron => ../../adapters/gocron

require (
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/jonboulle/clockwork v0.5.0
	github.com/seed951563bd/distsync v0.0.0-00010101000000-000000000000
	github.com/seed951563bd/distsync/adapters/gocron v0.0.0-00010101000000-000000000000
	go.uber.org/goleak v1.3.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
)

module github.com/seed951563bd/distsync/adapters/gocron

go 1.26.0

replace github.com/seed951563bd/distsync => ../../

require (
	github.com/go-co-op/gocron/v2 v2.21.2
	github.com/redis/go-redis/v9 v9.23.0
	github.com/seed951563bd/distsync v0.0.0-00010101000000-000000000000
	go.uber.org/goleak v1.3.0
)

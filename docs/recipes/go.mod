module github.com/seed951563bd/distsync/docs/recipes

go 1.26.0

replace github.com/seed951563bd/distsync => ../../

require (
	github.com/seed951563bd/distsync v0.0.0-00010101000000-000000000000
	go.uber.org/goleak v1.3.0
)

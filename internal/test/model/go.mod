module github.com/seed951563bd/distsync/internal/test/model

go 1.26.0

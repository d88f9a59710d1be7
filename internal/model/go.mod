module github.com/seed951563bd/distsync/internal/model

go 1.26.0

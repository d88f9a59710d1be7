package porting

import "testing"

func accounted(t *testing.T, section string, names []string) {}

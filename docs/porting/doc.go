// Package porting has the code of docs/porting.md, and tests that run it: what other packages for locks do, beside what this one does. It is a module of
// its own, so that nobody else needs these packages.
package porting

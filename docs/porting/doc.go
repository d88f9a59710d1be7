// Package porting has the code of docs/porting.md, and tests that run it. It shows code that uses
// other packages for locks beside the same code with this package. It is a module of its own, so
// that no other module needs those packages.
package porting

// Package porting contains the code of docs/porting.md, and its tests. It shows what code written
// for other lock packages looks like with this one. It is a separate module, so that no other
// module depends on those packages.
package porting

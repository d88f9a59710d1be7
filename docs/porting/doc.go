// Package porting contains the code of docs/porting.md, and its tests. It shows how code that uses
// another lock package looks with this one. It is a separate module, so that no other module
// depends on those packages.
package porting

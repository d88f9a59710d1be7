// Package recipes is the code of docs/recipes.md, and its tests: the right ways do what they promise, and the wrong ways don't.
package recipes

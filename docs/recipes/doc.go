// Package recipes has the code of docs/recipes.md, and its tests. They show that the right ways
// keep their promises, and that the wrong ways don't.
package recipes

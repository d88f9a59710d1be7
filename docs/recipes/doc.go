// Package recipes contains the code of docs/recipes.md, and its tests. They show that the
// recommended code works as promised, and that the code marked as wrong doesn't.
package recipes

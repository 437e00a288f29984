// Package chaos kills parts of the plane at chosen moments of a move and checks
// that the volume arrives nevertheless, with every acknowledged record.
package chaos

// Package house holds the tests that keep the house in order: who may import
// whom (design: "The house"), and that nothing on the path of a volume polls or
// sleeps. It has no code of its own outside its tests.
package house

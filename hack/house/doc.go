// Package house holds the tests of the repository's rules: which package may import which, that no code between a pod and
// its volume polls or sleeps, that the links in the documents lead somewhere, and that the documents use plain words. It
// has no code outside its tests.
package house

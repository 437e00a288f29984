// Package conformance holds a table of what upstream does to the tests that there are:
// each row needs a test that exists, or a documented difference. Only tests use it.
package conformance

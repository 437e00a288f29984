// Package conformance holds the tables of what upstream does to the tests of belay. A table is a YAML file: each row links a line of
// upstream's source and names the tests that show that belay does the same, or the documented difference. Only tests use the package.
package conformance

// Package explained makes the situations in which volumes get stuck, in a lab, and compares what `kubectl belay explain` says of
// each with the stored texts in testdata, on upstream's plane and on belay's.
package explained

// Package inspect hides how a cluster is read for a diagnosis: which objects a question needs, in pages and in parallel, with few
// requests, and what a missing permission or a failing API server leaves unknown. It only reads.
package inspect

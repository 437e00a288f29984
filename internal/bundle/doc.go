// Package bundle makes a support archive: it takes secrets and names out of objects and texts, and writes them with a list of what is in
// the archive. It reads no cluster.
package bundle

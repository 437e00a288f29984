// Package ledger is what the lab's pods write: numbered records in a file or on a
// raw block device, each forced to the disk before it is acknowledged and each
// chained to the one before it by a checksum. A reader can tell
// whether an acknowledged record is missing, was changed, or was written by a
// second writer at the same time.
//
// The package hides the format and the rule by which a torn tail, which a power
// cut may leave, is distinguished from damage.
package ledger

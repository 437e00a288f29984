// Package ledger is the program that the pods of the lab run: it appends numbered records to a file or a raw block device. Each record
// is synced to the disk before it is acknowledged, and chained to the one before it by a checksum. A reader detects whether an
// acknowledged record is missing, was changed, or was written by a second writer at the same time.
//
// The package hides the format, and the rule that distinguishes a torn tail, which a power cut may leave, from damage.
package ledger

// Package proc runs the lab's child processes so that none can be lost.
//
// Every child begins as this same program, re-executed (Exec): it writes a record of itself (pid,
// start time, boot ID) and only then becomes the wanted program. So a process without a record
// cannot exist, at whatever moment its parent is killed, and a later run can find it (Records),
// be sure that the pid is still that process, and end it.
//
// The package hides forking, records, log files, restarts with back-off, and how to wait for a
// process without polling.
package proc

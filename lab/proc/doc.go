// Package proc runs the child processes of the lab so that none can be lost.
//
// Every child starts as Program: it writes a record of itself (pid, start time, boot ID) and only then becomes the wanted program. So there
// is no process without a record, whenever its parent is killed, and a later run can find it (Records), be sure that the pid is still that
// process, and end it.
//
// The package hides forking, records, log files, restarts with back-off, and how to wait for a process without polling.
package proc

// Package demo is `belay-lab demo`, which shows on one machine what the project is for: a volume is provisioned, a pod writes to it,
// and it moves three times without losing a record. The output ends with what a user saw of each move and what the move waited for; a
// chart of each move goes to a file. With --compare it makes the same moves with
// upstream's controller and attacher and compares the times.
package demo

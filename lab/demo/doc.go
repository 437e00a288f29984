// Package demo is `belay-lab demo`, the project's main job shown on one machine: a
// volume that is made by a claim, written to by a pod, and moved three times with
// every record in place, each move drawn step by step. With --compare it makes the
// same moves through upstream's controller and attacher and sets both side by side.
package demo

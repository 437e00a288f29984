// Package e2e runs the demo from end to end, with each kind of node and with belay's and upstream's attach/detach. It holds tests only.
package e2e

// Package cli is the command line of belay-lab: it starts, shows, steers and removes labs, and
// mounts the commands of the lab's other parts.
package cli

// Package cli is the command line of belay-lab: it starts, shows, controls and removes labs, and adds the commands of the other
// packages of the lab.
package cli

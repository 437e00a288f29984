// Package planted holds the faults that tests plant in the product's code, to see that the simulations and the tables find them.
//
// In every program that is built without the tag belay_faults, each is a constant that is off. With it, BELAY_FAULT names the one that is on.
package planted

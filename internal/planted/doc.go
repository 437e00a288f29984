// Package planted has faults that tests enable in the product's code, to prove that the simulations and the tables find them.
//
// In programs that are built without the tag belay_faults each is a constant false. With the tag, BELAY_FAULT names the one that is
// enabled.
package planted

// Package callcheck judges a driver's record of calls by what the CSI specification demands of the caller: a volume is published to
// one node, staged where it is published, and unpublished where it is no longer staged.
//
// A storage that refuses a wrong call hides it: the plane tries again, and all is well. The record shows the call. It is a history of
// operations that overlap, of which some have an unknown result, so a checker of linearizability (porcupine) looks for one order of
// the calls about a volume in which each was permitted. If there is none, the plane has broken a rule. Whether two calls of the controller
// were in flight at once is no question of an order, nor of times, which a caller and its driver see differently: the driver has recorded it.
package callcheck

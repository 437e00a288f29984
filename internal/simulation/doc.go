// Package simulation runs the whole plane, the real attach/detach controller and the real attacher, against a model of everything around
// them, in an order that is drawn from a seed, and checks the invariants after every step.
//
// Real are: attachdetach with its watches, snapshots, decisions, reporter and writes; attacher with its informers, queue, decisions,
// ledger and writes, one process for each of the one or two drivers; kube's read-your-writes store and the barrier of a new leader.
// Modelled are: the API server (versions, preconditions, patches, finalizers), the network (lost requests, lost replies, late requests),
// the watches (each kind of each process lags separately), kubelets and their machines, the CSI drivers and their storage, and people,
// who also detach volumes from nodes at the storage: the driver's list shows it, or is wrong.
//
// A driver hangs now and then, or answers with errors. In many of the seeds that have two, one hangs after all other trouble has ended:
// what is of the other has to be attached, detached and moved within the same time as otherwise.
//
// Each process runs in a testing/synctest bubble and blocks at each request. One scheduler, which draws from the seed, chooses what
// happens next: which request is carried out, and how; which watch makes progress; which machine loses power; how much time passes.
// Nothing else decides, so a seed can be replayed.
//
// The package has only tests:
//
//	BELAY_SEED=17 go test -run TestSimulation ./internal/simulation       replays one seed and shows it
//	BELAY_SEEDS=20000 go test -run TestSimulation ./internal/simulation   runs that many
//	BELAY_COLLECT=1 BELAY_SEEDS=1000 go test …                            continues after a failure, and lists all by kind
package simulation

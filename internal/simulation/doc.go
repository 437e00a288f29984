// Package simulation runs the whole plane, the real attach/detach controller and the
// real attacher, against a model of everything around them, in an order that is drawn
// from a seed, and checks after every step what must always hold.
//
// Real are: attachdetach with its watches, snapshots, decisions, reporter and writes;
// attacher with its informers, queue, decisions, ledger and writes; kube's read-your-
// writes store and the barrier of a new leader. Modelled are: the API server (versions,
// preconditions, patches, finalizers), the network (lost requests, lost replies, late
// requests), the watches (each kind of each process lags on its own), kubelets and
// their machines, the CSI driver and the storage behind it, and people, who also take
// volumes from nodes behind the plane's back: the driver's list shows it, or lies.
//
// Each process runs in a testing/synctest bubble and blocks at each request; one
// scheduler, which draws from the seed, chooses what happens next: which request is
// carried out, and how; which watch moves on; which machine loses its power; how much
// time passes. Nothing else decides, so a seed can be replayed.
//
// The package has only tests:
//
//	BELAY_SEED=17 go test -run TestSimulation ./internal/simulation       replays one seed and shows it
//	BELAY_SEEDS=20000 go test -run TestSimulation ./internal/simulation   runs that many
//	BELAY_COLLECT=1 BELAY_SEEDS=1000 go test …                            goes on after a failure, and lists all by kind
package simulation

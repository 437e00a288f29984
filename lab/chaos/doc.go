// Package chaos kills parts of the plane at chosen moments of a move, or cuts them off from the API server, and checks
// that the volume still arrives, with every acknowledged record.
//
// One seed is one move of a writing pod, by drain or by delete and cordon, and one hit
// shortly after the recorder has seen a step of the move: kill -9 of the controller, the attacher, the node's agent or the API server,
// or a partition of the controller or the attacher that leads. One that is cut off continues until it has lost its lease, and still
// reaches the driver; its standby leads; what it sent meanwhile arrives when the partition ends. Some partitions end before the
// lease does. Sixteen seeds in a row hit every
// step of a volume's life once. After each seed the pod runs on the other node, a
// second pod reads all records back, the storage is asked for forbidden writes, the
// record of all calls is judged (package callcheck), a leader that was deposed has ended, and attachments, both lists on the Nodes
// and the storage agree; after the last one nothing is left in the cluster or on the
// machine. A strict storage refuses what is forbidden, and a permissive one carries it
// out: there a wrong call also shows in the data.
//
// The clocks of all processes are the machine's. Leaders whose clocks are up to a quarter of an hour apart are drawn by the seeds of
// internal/simulation.
//
//	BELAY_CHAOS_SEEDS=64          how many seeds (default 48; 3 with -short)
//	BELAY_CHAOS_FIRST_SEED=17     the first one: with one seed, a replay
//	BELAY_CHAOS_NODES=kubelet     kind of nodes (default belay)
//
// The test prints two tables of hits, step by victim: by the step that was waited
// for, which is what the seeds spread over, and by the step that was under way when
// it happened, which the random delay decides.
package chaos

// Package chaos kills parts of the plane at chosen moments of a move and checks
// that the volume still arrives, with every acknowledged record.
//
// One seed is one move of a writing pod, by drain or by delete and cordon, and one
// kill -9 of the controller, the attacher, the node's agent or the API server,
// shortly after the recorder has seen a step of the move. Sixteen seeds in a row hit every
// step of a volume's life once. After each seed the pod runs on the other node, a
// second pod reads all records back, the storage is asked for forbidden writes, the
// record of all calls is judged (package callcheck), and attachments, both lists on the Nodes
// and the storage agree; after the last one nothing is left in the cluster or on the
// machine. A strict storage refuses what is forbidden, and a permissive one carries it
// out: there a wrong call also shows in the data.
//
//	BELAY_CHAOS_SEEDS=64          how many seeds (default 32; 3 with -short)
//	BELAY_CHAOS_FIRST_SEED=17     the first one: with one seed, a replay
//	BELAY_CHAOS_NODES=kubelet     kind of nodes (default belay)
//
// The test prints two tables of kills, step by victim: by the step that was waited
// for, which is what the seeds spread over, and by the step that was under way when
// the process died, which the random delay decides.
package chaos

// Package stopped stops the kubelet of the node on which a pod writes, as systemctl stop kubelet does: the machine and its containers run on. It checks
// what recovery makes of it, on both kinds of nodes and with both profiles, each machine with a BMC.
//
// With each profile nothing is taken from the node while the cluster gives it a chance, and it is switched off once the taint manager has evicted the
// writer. Then the kubelet is started again at a moment of the fence, ten times in a lab: before the node is suspected, at each step of the fence, and after the volume has moved. A machine that was switched off is switched on, as by a person who
// finds it so. After each of them the writer has every record that was acknowledged, also those that only the log on the lost machine has; no node
// has written after the first write of the next one, as the storage recorded it; and in the end each node is Ready and takes pods.
//
// A third test has a person ask for the power-off with kubectl belay, with and without the right to.
//
//	BELAY_STOPPED_RESTARTS=20   how many restarts in each lab (default 10, of which each moment has one)
//	BELAY_STOPPED_SEED=17       the seed that a run printed: its moments again
//	BELAY_STOPPED_SKIP=6        how many restarts of the seed are left out
//
// The tests print how long it took from the stop of the kubelet until the pod wrote elsewhere, and in which phase each restart fell.
package stopped

// Package takeover hands attach and detach over on a live lab, from kube-controller-
// manager's controller to belay-controller and back, and checks that nothing is disturbed:
// not one detach, not one publish, not one pod disturbed. It holds tests only.
//
// The same for csi-attacher and belay-attacher, also while attaches and detaches are under way.
//
//	BELAY_TAKEOVER_PODS=20        how many pods (default 20)
//	BELAY_TAKEOVER_VOLUMES=10     how many volumes each (default 10)
//	BELAY_TAKEOVER_ATTACHED=200   attached volumes in the attachers' test (default 200)
package takeover

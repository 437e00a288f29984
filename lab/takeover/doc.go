// Package takeover hands attach and detach over on a live lab, from kube-controller-
// manager's controller to belay-controller and back, and checks that nothing is disturbed:
// not one detach, not one publish, not one pod disturbed. It holds tests only.
//
// Fibre Channel and iSCSI volumes change their controller on a lab whose kubelets are played: kube-controller-manager makes no
// VolumeAttachments for them, so that the first belay-controller records what Nodes report.
//
// The same for csi-attacher and belay-attacher, also while attaches and detaches are under way.
//
//	BELAY_TAKEOVER_PODS=20        how many pods (default 20)
//	BELAY_TAKEOVER_VOLUMES=10     how many volumes each (default 10)
//	BELAY_TAKEOVER_ATTACHED=200   attached volumes in the attachers' test (default 200)
package takeover

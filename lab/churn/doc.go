// Package churn moves the volumes of many hollow nodes about while belay-controller is
// killed, while its caches are delayed, or while a thousand pods wait for a volume that never comes, and
// checks that no invariant was broken at any time.
//
// The lab is real but for its nodes: API server, kube-controller-manager, belay-attacher
// and a storage that forbids nothing. The oracle of the tests reads the driver's
// record of calls, the hollow kubelets' record of mounts, and the controller's own writes,
// which a proxy in front of it records.
//
// TestAttacherKilledWhileVolumesMove does the same to belay-attacher, without a
// controller and with a driver inside the test, which outlives it.
//
//	BELAY_CHURN_VOLUMES=500       volumes of TestKilledWhileVolumesMove (default 500)
//	BELAY_CHURN_KILLS=100         kills of it (default 100)
//	BELAY_CHURN_NODES=20          hollow nodes of all tests (default 20)
//	BELAY_CHURN_SEED=7            seed of all that is chosen at random (default: by the clock, printed)
//	BELAY_CHURN_HELD=nodes        the one resource that TestCachesHeldBack holds back (default: each)
//	BELAY_CHURN_HOPELESS=1000     pods of TestHopelessPodsCostNothing (default 1000)
package churn

package attachdetach

import "slices"

// row maps one line of upstream's behaviour, or one of its faults, to what shows that
// belay does the same, or does otherwise on purpose.
type row struct {
	// id is the line's number in the list of what upstream 1.36.3 does; steps of its
	// detach have "detach" before the number, and faults their issue.
	id string
	// tests show it: "TestName/subtest" of this package, or "path/of/package.TestName".
	tests []string
	// differs begins the line of docs/differences.md that says what is otherwise.
	differs []string
	// safety is set for what S1 to S10 rest on: a difference alone does not do.
	safety bool
}

func tests(names ...string) []string { return names }

func up(names ...string) []string    { return prefixed("TestUpstream/", names) }
func lacks(names ...string) []string { return prefixed("TestUpstreamLacks/", names) }

func prefixed(prefix string, names []string) []string {
	all := slices.Clone(names)
	for i := range all {
		all[i] = prefix + all[i]
	}
	return all
}

// inputs are what the controller reads, and what follows for who wants what.
var inputs = []row{
	{id: "1", tests: tests("cmd/belay-controller.TestStandbyTakesOver", "cmd/belay-controller.TestPausedLeaderSendsNothing", "TestAttachReportAndDetach"), safety: true},
	{id: "2", tests: tests("TestTheLastObjectToArriveWakesItsVolume", "TestObjectsInAnyOrder"), differs: []string{"All pods are looked at every three minutes"}},
	{id: "3", tests: slices.Concat(tests("internal/kube.TestBarrierWaitsForTheCache", "internal/kube.TestBarrierHoldsWithoutAnAnswer"), up("Test_AttachDetachControllerRecovery/No extra pods")), safety: true},
	{id: "4", tests: slices.Concat(lacks("Fibre Channel and iSCSI are reported", "Fibre Channel is exclusive"), tests("internal/kube.TestVolumesOfPods"), up("Test_CreateVolumeSpec/inline volume type that does not support csi migration")), differs: []string{"Attachable FlexVolumes are driven"}, safety: true},
	{id: "5", tests: slices.Concat(lacks("managed by any value of the annotation", "no longer managed"), tests("TestNodeThatAttachesByItself")), differs: []string{"A node stays managed when its annotation is taken off"}, safety: true},
	{id: "6", tests: slices.Concat(lacks("terminated pods", "pod on no node"), up("TestPodUpdateWithADC")), safety: true},
	{id: "7", tests: lacks("keep-terminated-pod-volumes has no effect")},
	{id: "8", tests: slices.Concat(lacks("volume bound to another claim"), up("TestPVCBoundWithADC", "TestAttacherAttach/missing spec"), tests("TestEphemeralClaimOfAnotherPod"))},
	{id: "9", tests: up("TestAttacherWithCSIDriver/CSIDriver not attachable", "TestAttacherWithCSIDriver/CSIDriver is attachable", "TestAttacherWithCSIDriver/CSIDriver.AttachRequired not set  -> failure", "TestAttacherWithCSIDriver/CSIDriver does not exist not set  -> failure", "TestAttacherAttach/test with volume source")},
	{id: "10", tests: slices.Concat(up("TestFindAndRemoveNonattachableVolumes"), lacks("attachRequired turned on", "CSIDriver without attach deployed late"), tests("TestDriverTurnsToNoAttach")), differs: []string{"All pods are looked at every three minutes"}},
	{id: "11", tests: lacks("pod made anew under its name", "pod replaced within a watch gap")},
	{id: "12", tests: slices.Concat(up("TestPodDelete_Tombstone"), lacks("claim and volume gone before the pod", "node deleted within a watch gap"), tests("TestDeletionsMissedByTheWatch")), differs: []string{"A volume with a pod keeps being wanted when its claim"}, safety: true},
	{id: "13", tests: up("TestPVCBoundWithADC")},
	{id: "14", tests: slices.Concat(up("TestFindAndAddActivePods_FindAndRemoveDeletedPods", "TestPodDeletionWithDswp", "TestPodAddedByDswp"), lacks("all volumes of a pod at once"))},
	{id: "15", tests: tests("TestObjectsInAnyOrder", "TestEveryOrderEndsInTheSameDecision"), differs: []string{"All pods are looked at every three minutes"}},
}

// objects are the names and the fields that others read.
var objects = []row{
	{id: "16", tests: slices.Concat(tests("internal/kube.TestUniqueVolumeNameRoundTrip", "internal/kube.TestVolumesOfPersistentVolumes"), lacks("Fibre Channel and iSCSI are reported"))},
	{id: "17", tests: tests("internal/kube.TestAttachmentNameIsUpstreams")},
	{id: "18", tests: slices.Concat(up("TestAttacherAttach/test ok 1", "TestAttacherAttach/test ok 2", "Test_CreateVolumeSpec/inline volume type that supports csi migration", "TestAttacherAttach/mismatch vol", "TestAttacherAttach/mismatch driver", "TestAttacherAttach/mismatch node"), tests("TestAttachmentMadeAtTheSameMoment")), differs: []string{"VolumeAttachments carry no annotations"}, safety: true},
	{id: "19", tests: slices.Concat(up("TestAttacherDetach/normal test", "TestAttacherDetach/normal test 2", "TestAttacherDetach/object not found", "TestAttacherDetach/API error"), lacks("handle with any character"), tests("TestHandlesOfAnyCharacter")), differs: []string{"VolumeAttachments carry no annotations", "A handle with `^` attaches"}, safety: true},
	{id: "20", tests: slices.Concat(up("Test_OneVolumeTwoNodes_TwoDevicePaths", "TestNodeStatusUpdater_UpdateNodeStatuses_TwoNodesUpdate", "TestNodeStatusUpdater_UpdateNodeStatusForNode"), tests("TestReportDoesNotOverwrite")), differs: []string{"The report on the Node is withdrawn by a patch without preconditions"}, safety: true},
	{id: "21", tests: slices.Concat(lacks("report wiped"), up("Test_DeleteNode_Negative_NodeExistsHasChildVolumes", "TestNodeStatusUpdater_UpdateNodeStatuses_FailureInFirstUpdate")), differs: []string{"What a Node's `volumesAttached` lost"}, safety: true},
	{id: "22", tests: slices.Concat(up("Test_SetVolumesMountedByNode_Positive_Set", "Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSet", "Test_SetVolumesMountedByNode_Positive_UnsetWithoutInitialSet", "Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetVerifyDetachRequestedTimePerserved"), tests("TestTwoPersistentVolumesOfOneHandle")), safety: true},
	{id: "23", tests: up("Test_Run_OneVolumeAttachAndDetachUncertainNodesWithReadWriteOnce", "Test_Run_OneVolumeAttachAndDetachTimeoutNodesWithReadWriteOnce", "Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce"), differs: []string{"An attachment whose attach or detach failed"}, safety: true},
	{id: "24", tests: up("Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetAddVolumeNodeNotReset", "Test_Run_OneVolumeAttachAndDetachUncertainNodesWithReadWriteOnce"), differs: []string{"A volume whose attach failed is taken for mounted"}, safety: true},
}

// attaching is upstream's reconciler, but for its detach.
var attaching = []row{
	{id: "25", tests: up("TestOperationExecutor_AttachSingleNodeVolumeConcurrentlyToSameNode", "TestOperationExecutor_AttachMultiNodeVolumeConcurrentlyToSameNode", "TestOperationExecutor_AttachSingleNodeVolumeConcurrentlyToDifferentNodes", "TestOperationExecutor_AttachMultiNodeVolumeConcurrentlyToDifferentNodes", "TestOperationExecutor_DetachSingleNodeVolumeConcurrentlyFromSameNode", "TestOperationExecutor_DetachMultiNodeVolumeConcurrentlyFromSameNode", "TestOperationExecutor_DetachMultiNodeVolumeConcurrentlyFromDifferentNodes", "Test_NestedPendingOperations_Positive_Issue_88355"), safety: true},
	{id: "26", tests: slices.Concat(lacks("access modes"), up("Test_Run_OneVolumeAttachAndDetachMultipleNodesWithReadWriteMany")), safety: true},
	{id: "27", tests: slices.Concat(up("Test_Run_OneVolumeAttachAndDetachMultipleNodesWithReadWriteOnce"), tests("TestMultiAttachRefusedThenHandedOver")), differs: []string{"A pod is told of each retry of an attach"}, safety: true},
	{id: "28", tests: up("Test_ReportMultiAttachError/no pods use the volume", "Test_ReportMultiAttachError/pods in the same namespace use the volume", "Test_ReportMultiAttachError/pods in another namespace use the volume", "Test_ReportMultiAttachError/pods both in the same and another namespace use the volume"), differs: []string{"The Multi-Attach event ends with the pods that use the volume"}},
	{id: "29", tests: up("Test_Run_Positive_OneDesiredVolumeAttach", "TestAttacherAttach/attacher error")},
	{id: "30", tests: slices.Concat(up("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce/refused by the driver", "TestAttacherAttachWithInline/attacher error"), tests("internal/explain.TestTextsAreUpstreams", "internal/attachment.TestSilentAttacher")), differs: []string{"\"timed out waiting for external-attacher\"", "A pod that waits for an old attachment to go"}},
	{id: "31", tests: slices.Concat(tests("TestWantedAgainWhileDetachWaits"), up("Test_Run_UpdateNodeStatusFailBeforeOneVolumeDetachNodeWithReadWriteOnce")), safety: true},
	{id: "31b", tests: up("Test_Run_OneVolumeAttachAndDetachTimeoutNodesWithReadWriteOnce"), differs: []string{"A volume that is being attached is detached only after"}, safety: true},
}

// detaching are the steps of upstream's detach, and what it does around them.
var detaching = []row{
	{id: "detach 1", tests: up("TestOperationExecutor_DetachSingleNodeVolumeConcurrentlyFromSameNode", "Test_NestedPendingOperations_Negative_SecondThirdOpWithDifferentNames"), differs: []string{"An attach or detach that failed is tried again"}, safety: true},
	{id: "detach 2", tests: slices.Concat(up("TestAttacherDetach/object not found"), lacks("detach under way at the restart")), safety: true},
	{id: "detach 3", tests: slices.Concat(up("Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetVerifyDetachRequestedTimePerserved"), lacks("clock of a detach outlives the controller"), tests("internal/attachment.TestUnmountTimeout")), differs: []string{"The unmount timeout is counted in memory"}, safety: true},
	{id: "detach 4", tests: slices.Concat(up("Test_Run_OneVolumeDetachOnUnhealthyNode", "Test_Run_OneVolumeDetachOnUnhealthyNodeWithForceDetachOnUnmountDisabled"), lacks("node deleted in use, by the timeout")), safety: true},
	{id: "detach 5", tests: slices.Concat(up("Test_Run_OneVolumeDetachOnOutOfServiceTaintedNode", "Test_Run_OneVolumeDetachOnNoOutOfServiceTaintedNode"), lacks("out-of-service taint of any effect and value", "out-of-service taint taken off meanwhile")), differs: []string{"A forced detach acts on the cached Node"}, safety: true},
	{id: "detach 6", tests: up("Test_SetVolumesMountedByNode_Positive_Set", "Test_Run_Positive_OneDesiredVolumeAttachThenDetachWithMountedVolume", "Test_Run_OneVolumeDetachOnNoOutOfServiceTaintedNode"), safety: true},
	{id: "detach 7", tests: slices.Concat(tests("TestAttachReportAndDetach", "TestInUseWithoutReportIsReportedAgain"), up("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce")), safety: true},
	{id: "detach 8", tests: up("Test_Run_Negative_OneDesiredVolumeAttachThenDetachWithUnmountedVolumeUpdateStatusFail", "Test_Run_UpdateNodeStatusFailBeforeOneVolumeDetachNodeWithReadWriteOnce"), safety: true},
	{id: "detach 9", tests: slices.Concat(up("Test_Run_OneVolumeDetachOnUnhealthyNode"), tests("TestInUseBeforeTheWithdrawalLands")), differs: []string{"On a Ready node, six minutes after the request"}, safety: true},
	{id: "detach 10", tests: slices.Concat(tests("TestInUseBeforeTheWithdrawalLands", "TestLateDeleteOfTheLeaderBefore", "TestNodeDeleted"), up("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce/refused by the driver")), differs: []string{"The report on the Node is withdrawn by a patch without preconditions"}, safety: true},
	{id: "detach 11", tests: up("Test_Run_Positive_OneDesiredVolumeAttachThenDetachWithUnmountedVolume", "Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce", "TestAttacherDetach/API error"), differs: []string{"An attachment whose attach or detach failed"}, safety: true},
	{id: "32", tests: tests("TestClaimHearsOfDetach", "TestVolumeWithoutAClaimHearsOfDetach", "TestClaimHearsOfForcedDetach"), differs: []string{"Detach is silent"}},
	{id: "33", tests: slices.Concat(lacks("pod of a dead kubelet keeps its volume"), up("TestPodTerminationWithNodeOOSDetach")), safety: true},
	{id: "34", tests: slices.Concat(lacks("node deleted in use, by the timeout", "node deleted in use, never by force", "node deleted in use, detached by policy"), tests("TestNodeDeleted", "internal/attachment.TestDeletedNode")), differs: []string{"A deleted Node's volumes wait for the timeout"}, safety: true},
	{id: "35", tests: slices.Concat(up("Test_AttachDetachControllerStateOfWorldPopulators_Positive", "Test_AttachDetachControllerRecovery/Add a new pod between ASW and DSW ppoulators", "Test_AttachDetachControllerRecovery/Add a new pod between DSW ppoulator and reconciler run", "Test_AttachDetachControllerRecovery/Add a new pod between ASW and DSW ppoulators and another between DSW ppoulator and reconciler run", "Test_ADC_VolumeAttachmentRecovery/VA status is attached", "Test_ADC_VolumeAttachmentRecovery/VA status is unattached", "Test_ADC_VolumeAttachmentRecovery/Scheduled Pod with migrated PV", "Test_ADC_VolumeAttachmentRecovery/Deleted Pod with migrated PV", "TestAttacherVolumesAreAttached/attach and detach", "TestAttacherVolumesAreAttached/all detached", "TestAttacherVolumesAreAttached/all attached"), lacks("inline attachment without its pod", "driver turned to no attach while nobody led"), tests("TestOrphansAtStart", "TestOrphans")), differs: []string{"The unmount timeout is counted in memory"}, safety: true},
	{id: "36", tests: slices.Concat(lacks("attachment no longer attached"), up("TestAttacherVolumesAreAttached/include non-attable", "TestAttacherVolumesAreAttachedWithInline/attach and detach with volume sources")), differs: []string{"Every minute each node's volumes are compared with a second record"}, safety: true},
	{id: "37", tests: slices.Concat(up("Test_CreateVolumeSpec/pv type that supports csi migration", "Test_CreateVolumeSpec/inline volume type that supports csi migration", "Test_CreateVolumeSpec/pv type that does not support csi migration", "Test_CreateVolumeSpec/CSINode not found for a volume type that completes csi migration"), tests("internal/kube.TestVolumesOfPersistentVolumes", "TestInTreeVolumes"))},
	{id: "38", tests: lacks("status of the attachment left alone")},
	{id: "39", differs: []string{"`--feature-gates`"}},
}

// surface is what operators set, read and grant.
var surface = []row{
	{id: "flags", tests: tests("cmd/belay-controller.TestDefaultsAreUpstreams", "cmd/belay-controller.TestPolicyFromFlags", "cmd/belay-controller.TestNonsenseIsRefusedInOneSentence"), differs: []string{"Every minute each node's volumes are compared with a second record", "Attachable FlexVolumes are driven", "The controller allows itself 20 API requests"}},
	{id: "metrics", tests: slices.Concat(up("TestVolumesInUseMetricCollection", "TestTotalVolumesMetricCollection"), lacks("attaches and detaches are measured"), tests("internal/telemetry.TestUpstreamsNames", "TestUpstream", "TestUpstreamLacks")), differs: []string{"Every minute each node's volumes are compared with a second record", "The queue in the workqueue metrics is `pvcs`"}},
	{id: "events", tests: tests("TestEventsCarryTheReason", "internal/explain.TestTextsAreUpstreams", "TestMultiAttachRefusedThenHandedOver")},
	{id: "rbac", tests: tests("TestMain"), differs: []string{"`system:controller:attachdetach-controller` may"}, safety: true}, // TestMain compares rights and requests
}

// faults are those of upstream that 1.36.3 still has.
var faults = []row{
	{id: "k/k#65392", tests: slices.Concat(up("TestPodTerminationWithNodeOOSDetach"), lacks("pod of a dead kubelet keeps its volume")), safety: true},
	{id: "k/k#68086", tests: tests("cmd/belay-controller.TestPolicyFromFlags", "internal/attachment.TestUnmountTimeout")},
	{id: "k/k#142331", tests: lacks("out-of-service taint taken off meanwhile"), differs: []string{"A forced detach acts on the cached Node"}, safety: true},
	{id: "k/k#139660", differs: []string{"Kubelet publishes `volumesInUse` with its node status"}},
	{id: "k/k#136029", tests: lacks("node deleted in use, by the timeout", "node deleted in use, never by force", "node deleted in use, detached by policy"), safety: true},
	{id: "k/k#117042", tests: up("Test_Run_OneVolumeAttachAndDetachUncertainNodesWithReadWriteOnce"), safety: true},
	{id: "k/k#124334", tests: slices.Concat(tests("TestUncertainElsewhereBlocks"), up("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce")), safety: true},
	{id: "k/k#77324", tests: slices.Concat(tests("TestOrphansAtStart", "TestOrphans"), lacks("inline attachment without its pod"))},
	{id: "k/k#141151", tests: lacks("driver turned to no attach while nobody led")},
	{id: "k/k#81097", tests: slices.Concat(lacks("detach under way at the restart"), tests("TestRestartAtEveryRequest")), safety: true},
	{id: "k/k#122413", tests: slices.Concat(tests("TestReportDoesNotOverwrite"), lacks("report wiped")), safety: true},
	{id: "k/k#28141", tests: tests("internal/nodeagent.TestAVolumeGoesAllTheWayAndBack"), differs: []string{"Kubelet publishes `volumesInUse` with its node status"}},
	{id: "k/k#64549", tests: tests("TestObjectsInAnyOrder", "TestTheLastObjectToArriveWakesItsVolume")},
	{id: "k/k#84169", tests: tests("TestLatency", "hack/house.TestNothingOnTheWayOfAVolumePolls")},
	{id: "k/k#134175", tests: tests("TestReportsOfANodeShareWrites", "TestOneNodesFailureIsItsOwn")},
	{id: "k/k#116886", tests: up("Test_NestedPendingOperations_Negative_SecondThirdOpWithDifferentNames")},
	{id: "k/k#67853", tests: up("Test_DeleteNode_Negative_NodeExistsHasChildVolumes"), safety: true},
	{id: "external-attacher#215", tests: tests("internal/attacher.TestNodeCameBackUnderAnotherID"), differs: []string{"csi-attacher sends the CSINode's node id at detach"}},
	{id: "external-attacher#706", tests: tests("internal/attacher.TestSlotsGoToWhoWaitsLongest")},
	{id: "k/k#111327", tests: lacks("pod replaced within a watch gap")},
	{id: "k/k#114219", tests: tests("TestClaimHearsOfDetach")},
	{id: "k/k#96142", tests: tests("TestMultiAttachRefusedThenHandedOver"), differs: []string{"A pod is told of each retry of an attach"}},
	{id: "k/k#29262", tests: lacks("claim and volume gone before the pod"), safety: true},
	{id: "one volume per minute", tests: lacks("all volumes of a pod at once")},
	{id: "healthy node not looked at", tests: up("Test_Run_OneVolumeDetachOnUnhealthyNode"), safety: true},
	{id: "caret in a handle", tests: lacks("handle with any character")},
	{id: "node tombstone", tests: lacks("node deleted within a watch gap")},
	{id: "NotFound not recognised", tests: tests("TestNodeDeleted")},
}

package attachdetach

import (
	"slices"

	"belay.dev/belay/internal/conformance"
)

// Rows are named by the line's number in the list of what upstream 1.36.3 does; steps of
// its detach have "detach" before the number, and faults their issue.

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
var inputs = []conformance.Row{
	{ID: "1", Tests: tests("cmd/belay-controller.TestStandbyTakesOver", "cmd/belay-controller.TestPausedLeaderSendsNothing", "TestAttachReportAndDetach"), Safety: true},
	{ID: "2", Tests: tests("TestTheLastObjectToArriveWakesItsVolume", "TestObjectsInAnyOrder"), Differs: []string{"All pods are examined every three minutes"}},
	{ID: "3", Tests: slices.Concat(tests("internal/kube.TestBarrierWaitsForTheCache", "internal/kube.TestBarrierHoldsWithoutAnAnswer"), up("Test_AttachDetachControllerRecovery/No extra pods")), Safety: true},
	{ID: "4", Tests: slices.Concat(lacks("Fibre Channel and iSCSI are reported", "Fibre Channel is exclusive"), tests("internal/kube.TestVolumesOfPods"), up("Test_CreateVolumeSpec/inline volume type that does not support csi migration")), Differs: []string{"Attachable FlexVolumes are supported"}, Safety: true},
	{ID: "5", Tests: slices.Concat(lacks("managed by any value of the annotation", "no longer managed"), tests("TestNodeThatAttachesByItself")), Differs: []string{"A node stays managed when its annotation `controller-managed-attach-detach` is removed"}, Safety: true},
	{ID: "6", Tests: slices.Concat(lacks("terminated pods", "pod on no node"), up("TestPodUpdateWithADC")), Safety: true},
	{ID: "7", Tests: lacks("keep-terminated-pod-volumes has no effect")},
	{ID: "8", Tests: slices.Concat(lacks("volume bound to another claim"), up("TestPVCBoundWithADC", "TestAttacherAttach/missing spec"), tests("TestEphemeralClaimOfAnotherPod"))},
	{ID: "9", Tests: up("TestAttacherWithCSIDriver/CSIDriver not attachable", "TestAttacherWithCSIDriver/CSIDriver is attachable", "TestAttacherWithCSIDriver/CSIDriver.AttachRequired not set  -> failure", "TestAttacherWithCSIDriver/CSIDriver does not exist not set  -> failure", "TestAttacherAttach/test with volume source")},
	{ID: "10", Tests: slices.Concat(up("TestFindAndRemoveNonattachableVolumes"), lacks("attachRequired turned on", "CSIDriver without attach deployed late"), tests("TestDriverTurnsToNoAttach")), Differs: []string{"All pods are examined every three minutes"}},
	{ID: "11", Tests: lacks("pod made anew under its name", "pod replaced within a watch gap")},
	{ID: "12", Tests: slices.Concat(up("TestPodDelete_Tombstone"), lacks("claim and volume gone before the pod", "node deleted within a watch gap"), tests("TestDeletionsMissedByTheWatch")), Differs: []string{"A volume with a pod is still wanted after its claim"}, Safety: true},
	{ID: "13", Tests: up("TestPVCBoundWithADC")},
	{ID: "14", Tests: slices.Concat(up("TestFindAndAddActivePods_FindAndRemoveDeletedPods", "TestPodDeletionWithDswp", "TestPodAddedByDswp"), lacks("all volumes of a pod at once"))},
	{ID: "15", Tests: tests("TestObjectsInAnyOrder", "TestEveryOrderEndsInTheSameDecision"), Differs: []string{"All pods are examined every three minutes"}},
}

// objects are the names and the fields that others read.
var objects = []conformance.Row{
	{ID: "16", Tests: slices.Concat(tests("internal/kube.TestUniqueVolumeNameRoundTrip", "internal/kube.TestVolumesOfPersistentVolumes"), lacks("Fibre Channel and iSCSI are reported"))},
	{ID: "17", Tests: tests("internal/kube.TestAttachmentNameIsUpstreams")},
	{ID: "18", Tests: slices.Concat(up("TestAttacherAttach/test ok 1", "TestAttacherAttach/test ok 2", "Test_CreateVolumeSpec/inline volume type that supports csi migration", "TestAttacherAttach/mismatch vol", "TestAttacherAttach/mismatch driver", "TestAttacherAttach/mismatch node"), tests("TestAttachmentMadeAtTheSameMoment")), Differs: []string{"VolumeAttachments carry no annotations"}, Safety: true},
	{ID: "19", Tests: slices.Concat(up("TestAttacherDetach/normal test", "TestAttacherDetach/normal test 2", "TestAttacherDetach/object not found", "TestAttacherDetach/API error"), lacks("handle with any character"), tests("TestHandlesOfAnyCharacter")), Differs: []string{"VolumeAttachments carry no annotations", "A volume whose handle contains `^`"}, Safety: true},
	{ID: "20", Tests: slices.Concat(up("Test_OneVolumeTwoNodes_TwoDevicePaths", "TestNodeStatusUpdater_UpdateNodeStatuses_TwoNodesUpdate", "TestNodeStatusUpdater_UpdateNodeStatusForNode"), tests("TestReportDoesNotOverwrite")), Differs: []string{"The report on the Node is withdrawn by a patch without preconditions"}, Safety: true},
	{ID: "21", Tests: slices.Concat(lacks("report wiped"), up("Test_DeleteNode_Negative_NodeExistsHasChildVolumes", "TestNodeStatusUpdater_UpdateNodeStatuses_FailureInFirstUpdate")), Differs: []string{"What another client removed from a Node's `volumesAttached`"}, Safety: true},
	{ID: "22", Tests: slices.Concat(up("Test_SetVolumesMountedByNode_Positive_Set", "Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSet", "Test_SetVolumesMountedByNode_Positive_UnsetWithoutInitialSet", "Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetVerifyDetachRequestedTimePerserved"), tests("TestTwoPersistentVolumesOfOneHandle")), Safety: true},
	{ID: "23", Tests: up("Test_Run_OneVolumeAttachAndDetachUncertainNodesWithReadWriteOnce", "Test_Run_OneVolumeAttachAndDetachTimeoutNodesWithReadWriteOnce", "Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce"), Differs: []string{"An attachment whose attach or detach failed"}, Safety: true},
	{ID: "24", Tests: up("Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetAddVolumeNodeNotReset", "Test_Run_OneVolumeAttachAndDetachUncertainNodesWithReadWriteOnce"), Differs: []string{"A volume whose attach failed counts as mounted"}, Safety: true},
}

// attaching is upstream's reconciler, but for its detach.
var attaching = []conformance.Row{
	{ID: "25", Tests: up("TestOperationExecutor_AttachSingleNodeVolumeConcurrentlyToSameNode", "TestOperationExecutor_AttachMultiNodeVolumeConcurrentlyToSameNode", "TestOperationExecutor_AttachSingleNodeVolumeConcurrentlyToDifferentNodes", "TestOperationExecutor_AttachMultiNodeVolumeConcurrentlyToDifferentNodes", "TestOperationExecutor_DetachSingleNodeVolumeConcurrentlyFromSameNode", "TestOperationExecutor_DetachMultiNodeVolumeConcurrentlyFromSameNode", "TestOperationExecutor_DetachMultiNodeVolumeConcurrentlyFromDifferentNodes", "Test_NestedPendingOperations_Positive_Issue_88355"), Safety: true},
	{ID: "26", Tests: slices.Concat(lacks("access modes"), up("Test_Run_OneVolumeAttachAndDetachMultipleNodesWithReadWriteMany")), Safety: true},
	{ID: "27", Tests: slices.Concat(up("Test_Run_OneVolumeAttachAndDetachMultipleNodesWithReadWriteOnce"), tests("TestMultiAttachRefusedThenHandedOver")), Differs: []string{"A pod gets an event for each retry of an attach"}, Safety: true},
	{ID: "28", Tests: up("Test_ReportMultiAttachError/no pods use the volume", "Test_ReportMultiAttachError/pods in the same namespace use the volume", "Test_ReportMultiAttachError/pods in another namespace use the volume", "Test_ReportMultiAttachError/pods both in the same and another namespace use the volume"), Differs: []string{"The Multi-Attach event ends with the pods that use the volume"}},
	{ID: "29", Tests: up("Test_Run_Positive_OneDesiredVolumeAttach", "TestAttacherAttach/attacher error")},
	{ID: "30", Tests: slices.Concat(up("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce/refused by the driver", "TestAttacherAttachWithInline/attacher error"), tests("internal/explain.TestTextsAreUpstreams", "internal/attachment.TestSilentAttacher")), Differs: []string{"The event \"timed out waiting for external-attacher\"", "A pod that waits for an old attachment to go"}},
	{ID: "31", Tests: slices.Concat(tests("TestWantedAgainWhileDetachWaits"), up("Test_Run_UpdateNodeStatusFailBeforeOneVolumeDetachNodeWithReadWriteOnce")), Safety: true},
	{ID: "31b", Tests: up("Test_Run_OneVolumeAttachAndDetachTimeoutNodesWithReadWriteOnce"), Differs: []string{"A volume that is being attached is detached only after"}, Safety: true},
}

// detaching are the steps of upstream's detach, and what it does around them.
var detaching = []conformance.Row{
	{ID: "detach 1", Tests: up("TestOperationExecutor_DetachSingleNodeVolumeConcurrentlyFromSameNode", "Test_NestedPendingOperations_Negative_SecondThirdOpWithDifferentNames"), Differs: []string{"An attach or detach that failed is retried"}, Safety: true},
	{ID: "detach 2", Tests: slices.Concat(up("TestAttacherDetach/object not found"), lacks("detach under way at the restart")), Safety: true},
	{ID: "detach 3", Tests: slices.Concat(up("Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetVerifyDetachRequestedTimePerserved"), lacks("clock of a detach outlives the controller"), tests("internal/attachment.TestUnmountTimeout")), Differs: []string{"The unmount timeout is counted in memory"}, Safety: true},
	{ID: "detach 4", Tests: slices.Concat(up("Test_Run_OneVolumeDetachOnUnhealthyNode", "Test_Run_OneVolumeDetachOnUnhealthyNodeWithForceDetachOnUnmountDisabled"), lacks("node deleted in use, by the timeout")), Safety: true},
	{ID: "detach 5", Tests: slices.Concat(up("Test_Run_OneVolumeDetachOnOutOfServiceTaintedNode", "Test_Run_OneVolumeDetachOnNoOutOfServiceTaintedNode"), lacks("out-of-service taint of any effect and value", "out-of-service taint taken off meanwhile", "out-of-service taint on a Ready node")), Differs: []string{"A forced detach acts on the cached Node", "The out-of-service taint forces a detach on a Ready node too"}, Safety: true},
	{ID: "detach 6", Tests: up("Test_SetVolumesMountedByNode_Positive_Set", "Test_Run_Positive_OneDesiredVolumeAttachThenDetachWithMountedVolume", "Test_Run_OneVolumeDetachOnNoOutOfServiceTaintedNode"), Safety: true},
	{ID: "detach 7", Tests: slices.Concat(tests("TestAttachReportAndDetach", "TestInUseWithoutReportIsReportedAgain"), up("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce")), Safety: true},
	{ID: "detach 8", Tests: up("Test_Run_Negative_OneDesiredVolumeAttachThenDetachWithUnmountedVolumeUpdateStatusFail", "Test_Run_UpdateNodeStatusFailBeforeOneVolumeDetachNodeWithReadWriteOnce"), Safety: true},
	{ID: "detach 9", Tests: slices.Concat(up("Test_Run_OneVolumeDetachOnUnhealthyNode"), tests("TestInUseBeforeTheWithdrawalLands")), Differs: []string{"On a Ready node, six minutes after the request"}, Safety: true},
	{ID: "detach 10", Tests: slices.Concat(tests("TestInUseBeforeTheWithdrawalLands", "TestLateDeleteOfTheLeaderBefore", "TestNodeDeleted"), up("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce/refused by the driver")), Differs: []string{"The report on the Node is withdrawn by a patch without preconditions"}, Safety: true},
	{ID: "detach 11", Tests: up("Test_Run_Positive_OneDesiredVolumeAttachThenDetachWithUnmountedVolume", "Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce", "TestAttacherDetach/API error"), Differs: []string{"An attachment whose attach or detach failed"}, Safety: true},
	{ID: "32", Tests: tests("TestClaimHearsOfDetach", "TestVolumeWithoutAClaimHearsOfDetach", "TestClaimHearsOfForcedDetach"), Differs: []string{"Detach emits no events"}},
	{ID: "33", Tests: slices.Concat(lacks("pod of a dead kubelet keeps its volume"), up("TestPodTerminationWithNodeOOSDetach")), Safety: true},
	{ID: "34", Tests: slices.Concat(lacks("node deleted in use, by the timeout", "node deleted in use, never by force", "node deleted in use, detached by policy"), tests("TestNodeDeleted", "internal/attachment.TestDeletedNode")), Differs: []string{"The volumes of a deleted Node wait for the timeout"}, Safety: true},
	{ID: "35", Tests: slices.Concat(up("Test_AttachDetachControllerStateOfWorldPopulators_Positive", "Test_AttachDetachControllerRecovery/Add a new pod between ASW and DSW ppoulators", "Test_AttachDetachControllerRecovery/Add a new pod between DSW ppoulator and reconciler run", "Test_AttachDetachControllerRecovery/Add a new pod between ASW and DSW ppoulators and another between DSW ppoulator and reconciler run", "Test_ADC_VolumeAttachmentRecovery/VA status is attached", "Test_ADC_VolumeAttachmentRecovery/VA status is unattached", "Test_ADC_VolumeAttachmentRecovery/Scheduled Pod with migrated PV", "Test_ADC_VolumeAttachmentRecovery/Deleted Pod with migrated PV", "TestAttacherVolumesAreAttached/attach and detach", "TestAttacherVolumesAreAttached/all detached", "TestAttacherVolumesAreAttached/all attached"), lacks("inline attachment without its pod", "driver turned to no attach while nobody led"), tests("TestOrphansAtStart", "TestOrphans")), Differs: []string{"The unmount timeout is counted in memory"}, Safety: true},
	{ID: "36", Tests: slices.Concat(lacks("attachment no longer attached"), up("TestAttacherVolumesAreAttached/include non-attable", "TestAttacherVolumesAreAttachedWithInline/attach and detach with volume sources")), Differs: []string{"Every minute the attachments are compared with a second record"}, Safety: true},
	{ID: "37", Tests: slices.Concat(up("Test_CreateVolumeSpec/pv type that supports csi migration", "Test_CreateVolumeSpec/inline volume type that supports csi migration", "Test_CreateVolumeSpec/pv type that does not support csi migration", "Test_CreateVolumeSpec/CSINode not found for a volume type that completes csi migration"), tests("internal/kube.TestVolumesOfPersistentVolumes", "TestInTreeVolumes"))},
	{ID: "38", Tests: lacks("status of the attachment left alone")},
	{ID: "39", Differs: []string{"`--feature-gates`"}},
}

// surface is what operators set, read and grant.
var surface = []conformance.Row{
	{ID: "flags", Tests: tests("cmd/belay-controller.TestDefaultsAreUpstreams", "cmd/belay-controller.TestPolicyFromFlags", "cmd/belay-controller.TestNonsenseIsRefusedInOneSentence"), Differs: []string{"Every minute the attachments are compared with a second record", "Attachable FlexVolumes are supported", "The controller sends at most 20 API requests"}},
	{ID: "metrics", Tests: slices.Concat(up("TestVolumesInUseMetricCollection", "TestTotalVolumesMetricCollection"), lacks("attaches and detaches are measured"), tests("internal/telemetry.TestUpstreamsNames", "TestUpstream", "TestUpstreamLacks")), Differs: []string{"Every minute the attachments are compared with a second record", "The queue in the workqueue metrics is `pvcs`"}},
	{ID: "events", Tests: tests("TestEventsCarryTheReason", "internal/explain.TestTextsAreUpstreams", "TestMultiAttachRefusedThenHandedOver")},
	{ID: "rbac", Tests: tests("TestMain"), Differs: []string{"The role `system:controller:attachdetach-controller` allows"}, Safety: true}, // TestMain compares rights and requests
}

// faults are those of upstream that 1.36.3 still has.
var faults = []conformance.Row{
	{ID: "k/k#65392", Tests: slices.Concat(up("TestPodTerminationWithNodeOOSDetach"), lacks("pod of a dead kubelet keeps its volume")), Safety: true},
	{ID: "k/k#68086", Tests: tests("cmd/belay-controller.TestPolicyFromFlags", "internal/attachment.TestUnmountTimeout")},
	{ID: "k/k#142331", Tests: lacks("out-of-service taint taken off meanwhile"), Differs: []string{"A forced detach acts on the cached Node"}, Safety: true},
	{ID: "k/k#139660", Differs: []string{"The kubelet publishes `volumesInUse` with its node status"}},
	{ID: "k/k#136029", Tests: lacks("node deleted in use, by the timeout", "node deleted in use, never by force", "node deleted in use, detached by policy"), Safety: true},
	{ID: "k/k#117042", Tests: up("Test_Run_OneVolumeAttachAndDetachUncertainNodesWithReadWriteOnce"), Safety: true},
	{ID: "k/k#124334", Tests: slices.Concat(tests("TestUncertainElsewhereBlocks"), up("Test_Run_OneVolumeDetachFailNodeWithReadWriteOnce")), Safety: true},
	{ID: "k/k#77324", Tests: slices.Concat(tests("TestOrphansAtStart", "TestOrphans"), lacks("inline attachment without its pod"))},
	{ID: "k/k#141151", Tests: lacks("driver turned to no attach while nobody led")},
	{ID: "k/k#81097", Tests: slices.Concat(lacks("detach under way at the restart"), tests("TestRestartAtEveryRequest")), Safety: true},
	{ID: "k/k#122413", Tests: slices.Concat(tests("TestReportDoesNotOverwrite"), lacks("report wiped")), Safety: true},
	{ID: "k/k#28141", Tests: tests("internal/nodeagent.TestAVolumeGoesAllTheWayAndBack"), Differs: []string{"The kubelet publishes `volumesInUse` with its node status"}},
	{ID: "k/k#64549", Tests: tests("TestObjectsInAnyOrder", "TestTheLastObjectToArriveWakesItsVolume")},
	{ID: "k/k#84169", Tests: tests("TestLatency")},
	{ID: "k/k#134175", Tests: tests("TestReportsOfANodeShareWrites", "TestOneNodesFailureIsItsOwn")},
	{ID: "k/k#116886", Tests: up("Test_NestedPendingOperations_Negative_SecondThirdOpWithDifferentNames")},
	{ID: "k/k#67853", Tests: up("Test_DeleteNode_Negative_NodeExistsHasChildVolumes"), Safety: true},
	{ID: "external-attacher#215", Tests: tests("internal/attacher.TestNodeCameBackUnderAnotherID"), Differs: []string{"The detach uses the node ID of the CSINode"}},
	{ID: "external-attacher#706", Tests: tests("internal/attacher.TestHealthyVolumeBesideTrouble")},
	{ID: "k/k#111327", Tests: lacks("pod replaced within a watch gap")},
	{ID: "k/k#114219", Tests: tests("TestClaimHearsOfDetach")},
	{ID: "k/k#96142", Tests: tests("TestMultiAttachRefusedThenHandedOver"), Differs: []string{"A pod gets an event for each retry of an attach"}},
	{ID: "k/k#29262", Tests: lacks("claim and volume gone before the pod"), Safety: true},
	{ID: "one volume per minute", Tests: lacks("all volumes of a pod at once")},
	{ID: "healthy node not looked at", Tests: up("Test_Run_OneVolumeDetachOnUnhealthyNode"), Safety: true},
	{ID: "caret in a handle", Tests: lacks("handle with any character")},
	{ID: "node tombstone", Tests: lacks("node deleted within a watch gap")},
	{ID: "NotFound not recognised", Tests: tests("TestNodeDeleted")},
}

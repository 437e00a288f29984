package nodeagent

import (
	"slices"

	"belay.dev/belay/internal/conformance"
)

// groupNames are about fsGroup.
var groupNames = []upstreamNames{
	{"csimock/csi_fsgroup_mount.go", 2, []conformance.Row{
		{ID: "should pass FSGroup to CSI driver if it is set in pod and driver supports VOLUME_MOUNT_GROUP", Tests: tests("TestRequestsToTheLetter", "TestWhatTheDriverIsAsked")},
		// So it is called there, with a driver that does not.
		{ID: "should not pass FSGroup to CSI driver if it is set in pod and driver supports VOLUME_MOUNT_GROUP", Tests: tests("TestAVolumeIsGivenToThePodsGroupBeforeThePodGetsIt")},
	}},
	{"csimock/csi_fsgroup_policy.go", 9, same("TestUpstreamFSGroupPolicy",
		"should modify fsGroup if fsGroupPolicy=default", "should modify fsGroup if fsGroupPolicy=File", "should not modify fsGroup if fsGroupPolicy=None",
		"should update fsGroup if update from None to File", "should update fsGroup if update from None to default",
		"should not update fsGroup if update from File to None", "should update fsGroup if update from File to default",
		"should not update fsGroup if update from detault to None", "should update fsGroup if update from detault to File")},
	{"testsuites/fsgroupchangepolicy.go", 7, slices.Concat(
		byGroup("(Always) new pod fsgroup applied to volume contents", "(Always) chgrp in first pod, new pod with same fsgroup applied",
			"(OnRootMismatch) new pod fsgroup applied to volume contents", "(OnRootMismatch) chgrp in first pod, new pod with same fsgroup skips ownership changes"),
		same("TestUpstreamFSGroupOfTheNextPod", "(Always) rwop, new pod fsgroup applied to volume contents",
			"(Always) chgrp in first pod, new pod with different fsgroup applied", "(OnRootMismatch) chgrp in first pod, new pod with different fsgroup applied"))},
	{"csi: TestMounterSetUpWithFSGroup, TestMounterSetupJsonFileHandling", 2, []conformance.Row{
		{ID: "TestMounterSetUpWithFSGroup", Tests: tests("TestWhichVolumesAreGivenToAGroup", "TestAVolumeIsGivenToThePodsGroupBeforeThePodGetsIt", "TestRequestsToTheLetter")},
		{ID: "error in fsgroup permission change, should not remove json file", Tests: tests("TestUpstreamMounterSetupJSONFileHandling/error in fsgroup permission change, should not remove json file", "TestAChangeOfGroupThatFailsIsToldAndDoneAgain", "TestAChangeOfGroupThatWasCutShortIsDoneAgain"), Safety: true},
	}},
}

// byGroup are cases about which files are given to a group, and which are skipped.
func byGroup(names ...string) []conformance.Row {
	rows := make([]conformance.Row, 0, len(names))
	for _, name := range names {
		rows = append(rows, conformance.Row{ID: name, Tests: tests(
			"TestAVolumeIsGivenToThePodsGroupBeforeThePodGetsIt", "internal/mount.TestFilesAreGivenToAGroup", "internal/mount.TestWhichRootsBelongToAGroup")})
	}
	return rows
}

// tokenNames are about service account tokens and republish.
var tokenNames = []upstreamNames{
	{"csimock/csi_service_account_token.go", 4, []conformance.Row{
		{ID: "token should not be plumbed down when csiServiceAccountTokenEnabled=false", Tests: tests("TestPodServiceAccountTokenAttrs/driver asks for none")},
		{ID: "token should not be plumbed down when CSIDriver is not deployed", Tests: tests("TestPodServiceAccountTokenAttrs/no CSIDriver")},
		{ID: "token should be plumbed down when csiServiceAccountTokenEnabled=true", Tests: tests("TestPodServiceAccountTokenAttrs/one audience, 10 minutes")},
		{ID: "token should be plumbed down only in secrets when serviceAccountTokenInSecrets=true", Tests: tests("TestPodServiceAccountTokenAttrs/in secrets")},
	}},
	{"csi, reconciler: republish", 4, []conformance.Row{
		{ID: "TestPodServiceAccountTokenAttrs", Tests: tests("TestPodServiceAccountTokenAttrs", "TestATokenIsRenewedBeforeItExpires")},
		{ID: "setup with remount preserves mount dir on final error", Tests: tests("TestMounterSetUpFWithNodePublishFinalError", "internal/nodevolume.TestAPublishThatStandsSurvivesEveryReply"), Safety: true},
		{ID: "Test_UncertainVolumeMountState: success followed by timeout operation should result in mounted volume", Tests: tests("TestMounterSetUpFWithNodePublishFinalError", "internal/nodevolume.TestAPublishThatStandsSurvivesEveryReply"), Safety: true},
		{ID: "Test_UncertainVolumeMountState: success followed by failed operation should result in mounted volume", Tests: tests("TestMounterSetUpFWithNodePublishFinalError", "internal/nodevolume.TestAPublishThatStandsSurvivesEveryReply"), Safety: true},
	}},
}

// expansionNames are about volumes that grew.
var expansionNames = []upstreamNames{
	{"expansion", 2, []conformance.Row{
		{ID: "Test_UncertainVolumeMountState: mount success but fail to expand filesystem", Tests: tests("TestAFailedExpansionIsTriedAgain/before the pod starts", "TestAFailedExpansionIsTriedAgain/and the pod goes"), Safety: true},
		{ID: "should support expansion of pvcs created for ephemeral pvcs", Tests: tests("TestAClaimOfAnEphemeralVolumeGrows")},
	}},
}

// statsNames are about what a node says of its volumes, and how many it may have.
var statsNames = []upstreamNames{
	{"csimock/mutable_csinode_allocatable.go", 2, []conformance.Row{
		{ID: "should observe dynamic changes in CSINode allocatable count", Tests: tests("TestTheAllocatableCountFollowsTheDriver")},
		{ID: "should transition pod to failed state when attachment limit exceeded", Tests: tests("TestWaitForAttachAndMountVolumeAttachLimitExceededError")},
	}},
	{"volumemanager: attach limit", 1, []conformance.Row{
		{ID: "TestWaitForAttachAndMountVolumeAttachLimitExceededError", Tests: tests("TestWaitForAttachAndMountVolumeAttachLimitExceededError")},
	}},
	{"csimock/csi_node_volume_health.go", 3, same("TestCSINodeVolumeHealth",
		"return normal volume stats", "return normal volume stats without volume condition", "return normal volume stats with abnormal volume condition")},
}

// inlineNames are about inline volumes, besides those in the tables of the files that have others too.
var inlineNames = []upstreamNames{
	// The rest of the case is the API server's.
	{"csi_inline.go: CSIDriver", 1, []conformance.Row{{ID: "should run through the lifecycle of a CSIDriver", Tests: tests("TestVolumeLifecycleModes/no CSIDriver object, and then one", "TestUpstreamCSIDriverChanges/should bringup pod after deploying CSIDriver attach=false")}}},
	{"csi: TestCSI_VolumeAll", 1, []conformance.Row{{ID: "TestCSI_VolumeAll", Tests: tests(
		"TestAVolumeGoesAllTheWayAndBack", "TestCSIInlineVolumes", "TestVolumeLifecycleModes/driver of persistent volumes only", "TestVolumeLifecycleModes/no CSIDriver object, and then one",
		"TestVolumeLifecycleModes/driver of inline volumes only", "TestVolumeLifecycleModes/driver of both, both in one pod")}}},
}

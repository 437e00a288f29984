package nodeagent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"belay.dev/belay/internal/conformance"
)

// upstreamNames are cases of kubelet v1.36.3's tests, and of the e2e tests that need one node,
// by the file that they are in, with how many are taken from there.
type upstreamNames struct {
	from  string
	cases int
	rows  []conformance.Row
}

func tests(names ...string) []string { return names }

// same are cases that bear their upstream name as a subtest of a test here.
func same(test string, names ...string) []conformance.Row {
	rows := make([]conformance.Row, 0, len(names))
	for _, name := range names {
		rows = append(rows, conformance.Row{ID: name, Tests: tests(test + "/" + name)})
	}
	return rows
}

// safe marks rows that touch S7: a difference alone does not do.
func safe(rows []conformance.Row) []conformance.Row {
	for i := range rows {
		rows[i].Safety = true
	}
	return rows
}

// e2eNames are those of test/e2e/storage.
var e2eNames = []upstreamNames{
	{"csimock/csi_node_stage_error_cases.go", 8, safe(slices.Concat(
		same("TestUpstreamNodeStageErrorCases",
			"should call NodeUnstage after NodeStage success", "should retry NodeStage after NodeStage final error",
			"should retry NodeStage after NodeStage ephemeral error", "should call NodeUnstage after NodeStage ephemeral error",
			"should not call NodeUnstage after NodeStage final error"),
		same("TestUpstreamNodeUnstageErrorCases",
			"should call NodeStage after NodeUnstage success", "two pods: should call NodeStage after previous NodeUnstage final error",
			"two pods: should call NodeStage after previous NodeUnstage transient error"),
	))},
	{"csimock/csi_attach_volume.go", 6, safe(slices.Concat(
		same("TestUpstreamAttachOfEphemeral", "should require VolumeAttach for ephemermal volume and drivers with attachment"),
		same("TestUpstreamAttachPolicy",
			"should not require VolumeAttach for drivers without attachment", "should require VolumeAttach for drivers with attachment",
			"should preserve attachment policy when no CSIDriver present"),
		same("TestUpstreamCSIDriverChanges", "should cleanup VolumeAttachment properly", "should bringup pod after deploying CSIDriver attach=false"),
	))},
	{"csimock/csi_workload.go", 6, slices.Concat(
		same("TestUpstreamWorkloadInformation",
			"should be passed when podInfoOnMount=true", "should not be passed when podInfoOnMount=false",
			"should not be passed when CSIDriver does not exist", "should not be passed when update from true to false",
			"should be passed when update from false to true"),
		same("TestInlineWorkloadInformation", "contain ephemeral=true when using inline volume"),
	)},
	{"csimock/csi_volume_limit.go", 1, []conformance.Row{
		{ID: "should report attach limit when limit is bigger than 0", Tests: tests("TestInstallCSIDriver/new node with valid max limit of volumes")},
	}},
	{"csimock/csi_kubelet_restart.go", 1, safe(same("TestUpstreamRestarts",
		"should not umount volume when the pvc is terminating but still used by a running pod"))},
	{"testsuites/disruptive.go", 5, safe(same("TestUpstreamRestarts",
		"written before kubelet restart is readable after restart",
		"deleted while the kubelet is down cleans up when the kubelet returns", "force deleted while the kubelet is down cleans up when the kubelet returns",
		"deleted while the kubelet is down is usable by a new pod when kubelet returns", "force deleted while the kubelet is down is usable by a new pod when kubelet returns"))},
	{"testsuites/subpath.go", 2, safe(same("TestUpstreamSubPathRestarts",
		"should unmount if pod is gracefully deleted while kubelet is down", "should unmount if pod is force deleted while kubelet is down"))},
	{"testsuites/multivolume.go", 3, slices.Concat(
		[]conformance.Row{{ID: "should concurrently access the single volume from pods on the same node", Tests: tests("TestTwoPodsShareAVolume")}},
		same("TestUpstreamMultivolume",
			"should concurrently access the single read-only volume from pods on the same node",
			"should concurrently access the single volume from pods on different node"),
	)},
	{"testsuites/readwriteoncepod.go", 1, []conformance.Row{
		{ID: "should block a second pod from using an in-use ReadWriteOncePod volume on the same node", Tests: tests("TestReadWriteOncePodHoldsTheSecondPodBack")},
	}},
	{"testsuites/volumemode.go", 2, same("TestUpstreamVolumesOfPods",
		"should fail to use a volume in a pod with mismatched mode", "should not mount / map unused volumes in a pod")},
	{"testsuites/ephemeral.go", 4, same("TestUpstreamEphemeral",
		"should create read-only inline ephemeral volume", "should create read/write inline ephemeral volume",
		"should support two pods which have the same volume definition", "should support multiple inline ephemeral volumes")},
	{"csi_inline.go", 1, []conformance.Row{{ID: "should support CSIVolumeSource in Pod API", Tests: tests("TestCSIInlineVolumes")}}},
	{"csi_node.go", 1, []conformance.Row{{ID: "should run through the lifecycle of a csinode", Tests: tests("TestCSINodeLifecycle")}}},
}

// volumeManagerNames are those of pkg/kubelet/volumemanager and what it calls.
var volumeManagerNames = []upstreamNames{
	{"reconciler: Test_UncertainDeviceGlobalMounts", 5, slices.Concat(
		safe(same("TestUpstreamUncertainDeviceGlobalMounts",
			"timed out operations should result in device marked as uncertain", "failed operation should result in not-mounted device")),
		[]conformance.Row{
			{ID: "timeout followed by failed operation should result in non-mounted device", Tests: tests("TestUpstreamUncertainDeviceGlobalMounts/timeout followed by failed operation should result in non-mounted device"), Differs: tests("The kubelet believes a driver that refuses"), Safety: true},
			// Nothing is staged a second time while it is known to be staged.
			{ID: "success followed by timeout operation should result in mounted device", Tests: tests("TestTwoPodsShareAVolume", "TestUpstreamRestarts/written before kubelet restart is readable after restart")},
			{ID: "success followed by failed operation should result in mounted device", Tests: tests("TestTwoPodsShareAVolume", "TestUpstreamRestarts/written before kubelet restart is readable after restart")},
		},
	)},
	{"reconciler: Test_UncertainVolumeMountState", 3, slices.Concat(
		safe(same("TestUpstreamUncertainVolumeMountState",
			"timed out operations should result in volume marked as uncertain", "failed operation should result in not-mounted volume")),
		[]conformance.Row{
			{ID: "timeout followed by failed operation should result in non-mounted volume", Tests: tests("TestUpstreamUncertainVolumeMountState/timeout followed by failed operation should result in non-mounted volume"), Differs: tests("The kubelet believes a driver that refuses"), Safety: true},
		},
	)},
	{"reconciler", 7, safe(slices.Concat(
		same("TestUpstreamMountControllerAttachEnabled",
			"Test_Run_Positive_VolumeMountControllerAttachEnabledRace", "Test_Run_Negative_VolumeMountControllerAttachEnabled"),
		same("TestUpstreamRestarts", "TestReconcileWithUpdateReconstructedFromAPIServer", "TestReconstructedVolumeShouldUnmountSucceedAfterSetupFailed"),
		[]conformance.Row{
			{ID: "TestReconstructVolumes", Tests: tests("TestUpstreamRestarts/deleted while the kubelet is down cleans up when the kubelet returns", "TestTornRecordsForgetNothing/empty", "TestABlockVolume")},
			{ID: "TestReconstructVolumesMount", Tests: tests("TestUpstreamRestarts/written before kubelet restart is readable after restart", "TestUpstreamMounterSetUpWithNodePublishFinalError/setup with reconstructed volume", "TestAReboot")},
			{ID: "TestCleanOrphanVolumes", Tests: tests("TestTornRecordsForgetNothing/cut off", "TestAReboot")},
		},
	))},
	{"populator", 5, slices.Concat(
		[]conformance.Row{
			{ID: "TestFindAndRemoveDeletedPodsWithUncertain", Tests: tests("TestUpstreamUncertainVolumeMountState/timed out operations should result in volume marked as uncertain"), Safety: true},
			{ID: "TestFindAndRemoveNonattachableVolumes", Tests: tests("TestUpstreamCSIDriverChanges/TestFindAndRemoveNonattachableVolumes"), Differs: tests("A volume that is mounted leaves `volumesInUse`"), Safety: true},
		},
		same("TestUpstreamVolumesOfPods", "TestEphemeralVolumeOwnerCheck",
			"TestCreateVolumeSpec_Invalid_Block_VolumeMounts", "TestCreateVolumeSpec_Invalid_File_VolumeDevices"),
	)},
	{"volumemanager", 2, []conformance.Row{
		{ID: "TestInitialPendingVolumesForPodAndGetVolumesInUse", Tests: tests("TestUpstreamVolumesOfPods/TestInitialPendingVolumesForPodAndGetVolumesInUse"), Safety: true},
		{ID: "TestGetMountedVolumesForPodAndGetVolumesInUse", Tests: tests("TestAVolumeGoesAllTheWayAndBack", "TestABlockVolume", "TestUpstreamVolumesOfPods/should fail to use a volume in a pod with mismatched mode"), Safety: true},
	}},
	{"operationexecutor, nestedpendingoperations", 3, []conformance.Row{
		{ID: "TestOperationExecutor_MountVolume_Concurrent*", Tests: tests("TestUpstreamConcurrency/one call at a time for a volume", "TestUpstreamConcurrency/volumes side by side")},
		{ID: "TestOperationExecutor_Unmount*Concurrent*", Tests: tests("TestUpstreamConcurrency/one call at a time for a volume"), Differs: tests("The kubelet unmounts a volume from several pods in parallel")},
		{ID: "Test_NestedPendingOperations_*", Tests: tests("TestUpstreamConcurrency/one call at a time for a volume", "TestUpstreamConcurrency/a back-off for each pod", "TestAHangingCallHoldsUpItsOwnVolumeOnly"), Differs: tests("The kubelet has one back-off")},
	}},
	{"kubelet", 3, []conformance.Row{
		{ID: "TestUpdateNodeStatusAndVolumesInUseWithNodeLease", Tests: tests("TestAVolumeGoesAllTheWayAndBack", "TestLostRepliesNeverTakeAStagedVolumeOutOfUse"), Differs: tests("The kubelet publishes `volumesInUse`"), Safety: true},
		{ID: "TestCleanupOrphanedPodDirs", Tests: tests("TestTornRecordsForgetNothing/empty", "internal/mount.TestRemovalStopsAtMountsAndContent"), Differs: tests("The kubelet looks every 2 s for folders of pods")},
		{ID: "TestPodVolumeDeadlineAttachAndMount", Tests: tests("TestAWaitSaysItsHop")},
	}},
}

// csiNames are those of pkg/volume/csi and pkg/kubelet/pluginmanager.
var csiNames = []upstreamNames{
	{"nodeinfomanager: TestInstallCSIDriver", 17, same("TestInstallCSIDriver",
		"empty node", "pre-existing node info from the same driver", "pre-existing node info from the same driver, but without topology info",
		"pre-existing node info from different driver",
		"pre-existing node info from the same driver, but different node ID and topology values; labels should conflict",
		"pre-existing node info from the same driver, but different node ID and topology keys; new labels should be added",
		"pre-existing node info, but owned by previous node", "pre-existing node info with driver, but owned by previous node",
		"nil topology, empty node", "nil topology, pre-existing node info from the same driver", "nil topology, pre-existing node info from different driver",
		"empty node ID", "new node with valid max limit of volumes", "new node with max limit of volumes", "new node with overflown max limit of volumes",
		"new node without max limit of volumes", "node with existing valid max limit of volumes")},
	{"nodeinfomanager: TestUninstallCSIDriver", 5, same("TestUninstallCSIDriver",
		"empty node and empty CSINode", "pre-existing node info from the same driver", "pre-existing node info from different driver",
		"pre-existing info about the same driver in node, but empty CSINode", "pre-existing info about a different driver in node, but empty CSINode")},
	{"nodeinfomanager: TestInstallCSIDriverExistingAnnotation", 2, same("TestInstallCSIDriverExistingAnnotation",
		"pre-existing info about the same driver in node, but empty CSINode", "pre-existing info about a different driver in node, but empty CSINode")},
	{"pluginwatcher, pluginmanager/reconciler", 5, []conformance.Row{
		{ID: "TestPluginRegistration", Tests: tests("TestPluginRegistration")},
		{ID: "TestPluginRegistrationSameName", Tests: tests("TestPluginRegistrationSameName"), Differs: tests("The kubelet looks for new plugins once a second")},
		{ID: "TestPluginReRegistration", Tests: tests("TestPluginReRegistration")},
		{ID: "TestPluginRegistrationAtKubeletStart", Tests: tests("TestPluginRegistrationAtKubeletStart")},
		{ID: "Test_Run_Positive_ReRegister", Tests: tests("TestReRegisterOnAnotherSocket", "TestADriverThatMovesToAnotherSocketStaysKnown", "TestNodeDriverRegistrar")},
	}},
	{"csi", 10, []conformance.Row{
		{ID: "TestAttacherMountDevice", Tests: tests("TestRequestsToTheLetter", "TestUpstreamAttacherMountDevice/stage_unstage cap not set", "TestUpstreamAttacherMountDevice/driver not specified", "TestUpstreamAttacherMountDevice/failure PV with existing data", "TestUpstreamMounterSetupWithStatusTracking/setup with missing attachment should result in nochange", "TestUpstreamUncertainDeviceGlobalMounts/timed out operations should result in device marked as uncertain"), Safety: true},
		{ID: "TestAttacherUnmountDevice", Tests: tests("TestRequestsToTheLetter", "TestUpstreamAttacherUnmountDevice/json file doesn't exist", "TestUpstreamAttacherUnmountDevice/invalid json", "TestUpstreamAttacherMountDevice/stage_unstage cap not set", "TestTornRecordsForgetNothing/cut off", "TestTheWayBackWaitsForTheDriver"), Safety: true},
		{ID: "TestMounterSetUp", Tests: tests("TestRequestsToTheLetter", "TestAVolumeGoesAllTheWayAndBack", "TestUpstreamWorkloadInformation/should not be passed when podInfoOnMount=false", "TestUpstreamWorkloadInformation/should not be passed when CSIDriver does not exist", "TestUpstreamWorkloadInformation/should be passed when podInfoOnMount=true", "TestUpstreamWorkloadInformation/should not be passed when podInfoOnMount is left open")},
		{ID: "TestMounterSetupJsonFileHandling", Tests: tests("TestUpstreamMounterSetupJSONFileHandling/transient error should not remove json file", "TestUpstreamMounterSetupJSONFileHandling/final error should remove json file")},
		{ID: "TestMounterSetupWithStatusTracking", Tests: tests("TestAVolumeGoesAllTheWayAndBack", "TestUpstreamMounterSetupWithStatusTracking/setup with missing attachment should result in nochange", "TestUpstreamMounterSetupWithStatusTracking/missing attachment of a volume that is staged", "TestUpstreamMounterSetupWithStatusTracking/setup with missing secrets should result in nochange exit", "TestUpstreamMounterSetupWithStatusTracking/setup with timeout errors on NodePublish"), Safety: true},
		{ID: "TestAccessModeMapping", Tests: tests("internal/csi.TestAccessModeMapping", "TestRequestsToTheLetter")},
		{ID: "TestVolumeSetupTeardown", Tests: tests("TestABlockVolume")},
		{ID: "TestValidatePlugin", Tests: tests("TestValidatePlugin")},
		{ID: "TestValidatePluginExistingDriver", Tests: tests("TestPluginRegistrationSameName")},
		{ID: "TestMounterSetUpFWithNodePublishFinalError, new and reconstructed", Tests: tests("TestUpstreamMounterSetUpWithNodePublishFinalError/setup with new volume", "TestUpstreamMounterSetupJSONFileHandling/final error should remove json file", "TestUpstreamMounterSetUpWithNodePublishFinalError/setup with reconstructed volume")},
	}},
}

// TestUpstreamsNames holds the table to what there is: every case has a test that exists,
// or a difference that is documented; what S7 rests on has a test.
func TestUpstreamsNames(t *testing.T) {
	document, err := conformance.Differences()
	if err != nil {
		t.Fatal(err)
	}
	sources, required := new(conformance.Sources), requiredNames(t)
	for _, group := range slices.Concat(e2eNames, volumeManagerNames, csiNames, groupNames, tokenNames, expansionNames, statsNames, inlineNames, seLinuxNames) {
		if len(group.rows) != group.cases {
			t.Errorf("%s: %d cases, want %d", group.from, len(group.rows), group.cases)
		}
		for _, wrong := range conformance.Judge(group.rows, required[group.from], document, sources.Has) {
			t.Errorf("%s: %s", group.from, wrong)
		}
		delete(required, group.from)
	}
	for from := range required {
		t.Errorf("%s: nothing of it is in the table", from)
	}
}

// requiredNames are the cases of which the table must have each, by the file that they are in.
func requiredNames(t *testing.T) map[string][]string {
	t.Helper()
	raw, err := os.ReadFile("testdata/upstream-names.txt")
	must(t, err)
	names, from := map[string][]string{}, ""
	for line := range strings.Lines(string(raw)) {
		switch line = strings.TrimSpace(line); {
		case line == "", strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			from = strings.Trim(line, "[]")
		default:
			names[from] = append(names[from], line)
		}
	}
	return names
}

// TestUpstreamsNamesCatch shows that the table can fail.
func TestUpstreamsNamesCatch(t *testing.T) {
	wrong := conformance.Judge(slices.Concat(same("TestUninstallCSIDriver", "nothing of this kind"), same("TestNothing", "at all"), []conformance.Row{
		{ID: "neither"}, {ID: "undocumented", Differs: tests("Nothing of this kind")}, {ID: "waived", Differs: tests("Kubelet publishes"), Safety: true},
	}), []string{"neither", "left out"}, "\n| Kubelet publishes", new(conformance.Sources).Has)
	if len(wrong) != 6 {
		t.Errorf("said %s, want that each row is wrong, and that one is missing", fmt.Sprint(wrong))
	}
}

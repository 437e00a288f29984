package attacher

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"belay.dev/belay/internal/conformance"
)

func tests(names ...string) []string { return names }

func request(names ...string) []string { return prefixed("TestCSIHandlerAttachRequest/", names) }
func refused(names ...string) []string { return prefixed("TestCSIHandlerRefused/", names) }
func detach(names ...string) []string  { return prefixed("TestCSIHandlerDetach/", names) }
func lost(names ...string) []string    { return prefixed("TestLostWrites/", names) }

func prefixed(prefix string, names []string) []string {
	all := slices.Clone(names)
	for i := range all {
		all[i] = prefix + all[i]
	}
	return all
}

// attachCases are those of csi-attacher v4.12.0's TestCSIHandler, by their number there:
// how a VolumeAttachment is attached.
var attachCases = []conformance.Row{
	{ID: "1 VolumeAttachment added", Tests: slices.Concat(tests("TestVolumeAttachmentAddedSuccessfulAttachmentAndDetach"), request("volume added")), Safety: true},
	{ID: "2 with InlineVolumeSpec", Tests: request("volume added"), Safety: true}, // each of these also inline
	{ID: "3 readOnly", Tests: request("readOnly volume")},
	{ID: "4 readOnly, inline", Tests: request("readOnly volume")},
	{ID: "5 updated", Tests: tests("TestUpdatedWhileBackingOff/of a PersistentVolume")},
	{ID: "6 updated, inline", Tests: tests("TestUpdatedWhileBackingOff/inline")},
	{ID: "7 attributes", Tests: request("volume with attributes")},
	{ID: "8 attributes, inline", Tests: request("volume with attributes")},
	{ID: "9 secrets", Tests: request("volume with secrets")},
	{ID: "10 secrets, inline", Tests: request("volume with secrets")},
	{ID: "11 empty secrets", Tests: request("volume with empty secrets")},
	{ID: "12 empty secrets, inline", Tests: request("volume with empty secrets")},
	{ID: "13 missing secrets", Tests: refused("missing secrets"), Safety: true},
	{ID: "14 PV finalizer is added", Tests: tests("TestPVFinalizerIsAddedBeforeTheCall"), Safety: true},
	{ID: "15 error saving PV finalizer", Tests: slices.Concat(lost("error saving PV finalizer -> controller retries"), tests("TestPVFinalizerRefused")), Safety: true},
	{ID: "16 already attached", Tests: tests("TestCSIHandlerAlreadyAttachedIgnored")},
	{ID: "17 PV with deletion timestamp", Tests: refused("PV with deletion timestamp")},
	{ID: "18 incl. metadata", Tests: tests("TestVolumeAttachmentAddedSuccessfulAttachmentAndDetach", "TestPublishContextReplacesAnEarlierOne")},
	{ID: "19 unknown driver", Tests: tests("TestCSIHandlerUnknownDriverIgnored")},
	{ID: "20 unknown PV", Tests: refused("unknown PV")},
	{ID: "21 unknown PV + error saving the error", Tests: tests("TestErrorThatCannotBeSaved")},
	{ID: "22 neither source", Tests: tests("TestSourceOf/neither", "TestAPIServerRefusesSources/neither")},
	{ID: "23 both sources", Tests: tests("TestSourceOf/both", "TestAPIServerRefusesSources/both")},
	{ID: "24 unknown node", Tests: refused("unknown node", "unknown node, annotation")},
	{ID: "25 failed write with VA finalizers", Tests: lost("failed write with VA finalizers -> controller retries"), Safety: true},
	{ID: "26 failed write with attached=true", Tests: lost("failed write with attached=true -> recorded later"), Differs: tests("A call that the driver confirmed is repeated")},
	{ID: "27 CSI attach fails", Tests: tests("TestCSIAttachFailsThenSucceeds")},
	{ID: "28 CSI attach times out", Tests: tests("TestCSIAttachTimesOut"), Safety: true},
	{ID: "29 Node without CSINode", Tests: refused("unknown node")},
	{ID: "30 CSINode without the driver", Tests: refused("CSINode exists without the driver")},
	{ID: "31 CSINode with the driver", Tests: request("volume added")},
	{ID: "32 GCE PD", Tests: tests("TestGCEPDIsTranslated")},
}

// detachCases are how it is detached.
var detachCases = []conformance.Row{
	{ID: "33 marked for deletion", Tests: detach("VolumeAttachment marked for deletion"), Differs: tests("csi-attacher removes the finalizer and then patches"), Safety: true},
	{ID: "34 inline", Tests: request("volume added")}, // each of these is detached, too
	{ID: "35 secrets", Tests: request("volume with secrets")},
	{ID: "36 secrets, inline", Tests: request("volume with secrets")},
	{ID: "37 empty secrets", Tests: request("volume with empty secrets")},
	{ID: "38 empty secrets, inline", Tests: request("volume with empty secrets")},
	{ID: "39 missing secrets", Tests: detach("missing secrets"), Safety: true},
	{ID: "40 CSI detach fails", Tests: detach("CSI detach fails, NotFound is no success"), Safety: true},
	{ID: "41 CSI detach times out", Tests: detach("CSI detach times out"), Safety: true},
	{ID: "42 already detached", Tests: tests("TestDeletedWithoutOurFinalizerIgnored")},
	{ID: "43 unknown PV", Tests: detach("unknown PV"), Safety: true},
	{ID: "44 unknown PV + error saving", Tests: tests("TestDetachErrorThatCannotBeSaved")},
	{ID: "45 neither", Tests: tests("TestSourceOf/neither", "TestAPIServerRefusesSources/neither")},
	{ID: "46 both", Tests: tests("TestSourceOf/both", "TestAPIServerRefusesSources/both")},
	{ID: "47 unknown node w/o annotation", Tests: detach("unknown node without annotation"), Safety: true},
	{ID: "48 unknown node, annotation", Tests: detach("unknown node, annotation"), Safety: true},
	{ID: "49 failed write with finalizer removal", Tests: lost("failed write with finalizer removal -> controller retries"), Differs: tests("A call that the driver confirmed is repeated"), Safety: true},
	{ID: "50 GCE PD", Tests: tests("TestGCEPDIsTranslated")},
}

// volumeCases are when the finalizer comes off a PersistentVolume.
var volumeCases = []conformance.Row{
	{ID: "51 VA deleted -> removed", Tests: tests("TestPVFinalizer")},
	{ID: "52 VA deleted -> removed, GCE PD", Tests: tests("TestGCEPDIsTranslated")},
	{ID: "53 VA deleted -> not removed when absent", Tests: tests("TestMayRelease/without our finalizer")},
	{ID: "54 the same, GCE PD", Tests: tests("TestMayRelease/without our finalizer, in-tree")},
	{ID: "55 PV updated -> removed", Tests: tests("TestPVDeletedLaterThanItsAttachment")},
	{ID: "56 other finalizers preserved", Tests: tests("TestPVFinalizer")},
	{ID: "57 removal fails", Tests: tests("TestPVFinalizerRemovalFails")},
	{ID: "58 no finalizer", Tests: tests("TestMayRelease/without our finalizer")},
	{ID: "59 no deletion timestamp", Tests: tests("TestMayRelease/in use", "TestPVDeletedLaterThanItsAttachment")},
	{ID: "60 VA exists", Tests: tests("TestPVFinalizer")},
	{ID: "61 other driver's PV", Tests: tests("TestMayRelease/another driver's")},
}

// otherCases are csi-attacher's other tests, and what the list says is not covered there.
var otherCases = []conformance.Row{
	{ID: "TestVolumeAttachmentWithErrorCode", Tests: tests("TestCSIAttachFailsThenSucceeds/with error code")},
	{ID: "TestCSIHandlerReconcileVA", Tests: tests("TestCSIHandlerReconcileVA"), Safety: true},
	{ID: "TestCSIHandlerReadOnly", Tests: request("readOnly volume, driver without PUBLISH_READONLY", "volume added, driver without PUBLISH_READONLY")},
	{ID: "TestTrivialHandler", Tests: tests("TestTrivialHandler", "TestTrivialHandlerFailedWrite")},
	{ID: "TestShouldEnqueueVAChange", Tests: tests("TestUpdatedWhileBackingOff", "TestWhatEndsTheBackOff")},
	{ID: "TestProcessFinalizers", Tests: tests("TestMayRelease")},
	{ID: "TestMarkAsMigrated", Tests: tests("TestSourceOf/in-tree volume of a pod", "TestGCEPDIsTranslated")},
	{ID: "TestGetVolumeCapabilities", Tests: tests("TestAccessModes")},
	{ID: "TestSanitizeDriverName, TestGetFinalizerName", Tests: tests("internal/kube.TestAttacherFinalizer")},
	{ID: "TestAddFinalizerPatch, TestRemoveFinalizerPatch", Tests: tests("TestPVFinalizerOfConcurrentAttachments", "TestPVFinalizer"), Differs: tests("csi-attacher appends its finalizer")},
	{ID: "TestGetVolumeHandle", Tests: tests("TestSourceOf")},
	{ID: "TestAttach", Tests: slices.Concat(request("volume added", "readOnly volume", "volume with attributes", "volume with secrets"), tests("TestVolumeAttachmentAddedSuccessfulAttachmentAndDetach", "TestCSIAttachFailsThenSucceeds", "TestCSIAttachTimesOut"))},
	{ID: "TestDetachAttach", Tests: slices.Concat(request("volume with secrets"), detach("CSI detach fails, PermissionDenied", "CSI detach times out", "CSI detach fails, NotFound is no success")), Safety: true},
	{ID: "stale-cache duplicate RPC", Tests: tests("TestHundredAttachesAreHundredPublishCalls"), Safety: true},
	{ID: "CSINode not synced", Tests: tests("TestCSINodesAreAwaited"), Safety: true},
	{ID: "node re-created with new ID", Tests: tests("TestNodeCameBackUnderAnotherID"), Safety: true},
	{ID: "message > 1024", Tests: tests("TestCSIAttachFailsThenSucceeds/too long for the API server")},
	{ID: "concurrent VAs of one PV", Tests: tests("TestPVFinalizerOfConcurrentAttachments")},
	{ID: "forced re-attach failure", Tests: tests("TestPublishAgainThatFailsIsRetried")},
	{ID: "paging", Tests: tests("TestListIsReadWholeOrNotAtAll/three pages", "TestListThatNeverEnds")},
	{ID: "SIGTERM", Tests: tests("TestSidecarTerminatedWhileACallIsInFlight"), Safety: true},
	{ID: "lease hand-over", Tests: tests("TestHandOverOnSIGTERM", "TestHandOverOnCrash", "TestThawedLeaderSendsNothing", "TestHandOverBetweenUpstreamAndBelay"), Safety: true},
	{ID: "VA deleted during publish", Tests: tests("TestDeletedDuringPublish"), Safety: true},
	{ID: "leaked backoff", Tests: tests("TestAttachmentMadeAgainStartsFresh")},
}

// TestUpstreamsCases holds the table to what there is: every case of csi-attacher's, and
// each that it does not cover, has a test.
func TestUpstreamsCases(t *testing.T) {
	document, err := conformance.Differences()
	must(t, err)
	numbered := slices.Concat(attachCases, detachCases, volumeCases)
	for i, r := range numbered {
		if number := strconv.Itoa(i+1) + " "; r.ID[:min(len(r.ID), len(number))] != number {
			t.Errorf("case %d is missing, there is %q", i+1, r.ID)
		}
	}
	if n := len(numbered); n != 61 {
		t.Errorf("%d numbered cases, want 61", n)
	}
	table := slices.Concat(numbered, otherCases)
	for _, fault := range conformance.Judge(table, nil, document, new(conformance.Sources).Has) {
		t.Error(fault)
	}
}

// TestUpstreamsCasesCatch shows that the table can fail.
func TestUpstreamsCasesCatch(t *testing.T) {
	wrong := conformance.Judge([]conformance.Row{{ID: "a", Tests: refused("nothing of this kind")}}, []string{"b"}, "", new(conformance.Sources).Has)
	if len(wrong) != 2 {
		t.Errorf("said %s, want that a's test and b are missing", fmt.Sprint(wrong))
	}
}

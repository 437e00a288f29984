package explain

import (
	"context"
	"errors"
	"testing"
)

var errAway = errors.New("away")

// TestTextsForTheStatusOfAnAttachment: those that csi-attacher has are its own.
func TestTextsForTheStatusOfAnAttachment(t *testing.T) {
	for want, got := range map[string]string{
		"both InlineCSIVolumeSource and PersistentVolumeName specified in VA source":    BothSources,
		"neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source": NoSource,
		"inline volume spec contains nil CSI source":                                    InlineWithoutCSI,
		"pv spec contained non-csi source that was not migrated":                        NotCSI,
		"failed to translate in tree pv to CSI: away":                                   TranslateFailed("away"),
		`persistentvolume "pv" not found`:                                               VolumeNotFound("pv"),
		`PersistentVolume "pv" is marked for deletion`:                                  VolumeMarkedForDeletion("pv"),
		`PersistentVolume "pv" belongs to CSI driver "d", not to "e"`:                   VolumeOfOtherDriver("pv", "d", "e"),
		`PersistentVolume "pv" was recreated for another volume, "h"`:                   VolumeRecreated("pv", "h"),
		`PersistentVolume "pv" was recreated for another volume, "h", and which volume this VolumeAttachment is for was not recorded: nothing is attached or detached for it. ` +
			`Create a PersistentVolume with the handle of the earlier volume, or detach that volume at the storage and remove the finalizer f`: VolumeRecreatedUnrecorded("pv", "h", "f"),
		`csinode.storage.k8s.io "n" not found`:           CSINodeNotFound("n"),
		"CSINode n does not contain driver d":            CSINodeLacksDriver("n", "d"),
		`failed to load secret "ns/s": away`:             SecretNotLoaded("ns", "s", errAway).Error(),
		"could not add PersistentVolume finalizer: away": VolumeNotProtected(errAway).Error(),
		"could not save VolumeAttachment: away":          AttachmentNotSaved(errAway).Error(),
		"could not mark as detached: away":               NotMarkedDetached(errAway).Error(),
		"could not save the publish context: away":       PublishContextNotSaved(errAway).Error(),
		`the driver lists the volume at node ID "i", which no VolumeAttachment is for, and it is not unpublished there: w`: NotFreed("i", "w"),
		`Node "n" lists it in use`:                                        ListedInUse("n"),
		`Node "n" is not Ready, so its list of volumes in use may be old`: ListMayBeOld("n"),
		`the attacher may not read Node "n": its ServiceAccount needs the verb get on nodes (deploy/belay-attacher/rbac-nodes.yaml)`: NodeNotReadable("n"),
		`reading Node "n" failed: away`:     NodeNotRead("n", errAway),
		`no Node is known with node ID "i"`: NoNodeWithID("i"),
		`"kcm" created VolumeAttachment csi-1. Only one attach/detach controller may run: if this was another one, disable it`: ForeignWrite("kcm", CreatedAttachment("csi-1")),
		`"kcm" emitted R as c on Pod ns/p. belay-controller held back its own: another attach/detach controller is running. ` +
			`belay-controller has halted; disable one of the two, and if belay stays, restart it`: Halted("kcm", EmittedEvent("R", "c", "Pod", "ns", "p")),
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	for _, err := range []error{
		SecretNotLoaded("ns", "s", errAway), VolumeNotProtected(errAway), AttachmentNotSaved(errAway), NotMarkedDetached(errAway), PublishContextNotSaved(errAway),
		AttachmentNotRead("h", "csi-1", errAway), NotTidied("d", "", errAway), ExpandClaimNotRead(errAway), ExpandNotMarked(errAway), ExpandNotRecorded(errAway), OwnershipNotSet("h", errAway),
	} {
		if !errors.Is(err, errAway) {
			t.Errorf("%v does not wrap its cause", err)
		}
	}
}

// TestTextsOfNodeCalls: those that kubelet has are its own.
func TestTextsOfNodeCalls(t *testing.T) {
	for want, got := range map[string]string{
		"volume h has GET error for volume attachment csi-1: away": AttachmentNotRead("h", "csi-1", errAway).Error(),
		"volume attachment is being deleted (csi-1)":               AttachmentDeleting("csi-1"),
		"volume h is not attached for volume attachment csi-1":     NotAttachedFor("h", "csi-1"),
		"driver d returned OK, but: away":                          NotTidied("d", "", errAway).Error(),
		"driver d no longer has STAGE_UNSTAGE_VOLUME and cannot unstage what an earlier version staged (remedy: umount /s), but: away":                                                                                           NotTidied("d", NoLongerStages("/s"), errAway).Error(),
		"driver d returned OK to NodePublishVolume of volume h, but nothing is mounted at /t; if the driver runs in a container, it must mount /r with mountPropagation Bidirectional, and belay-node must see the mounts":       NothingPublished("d", "h", "/t", "/r", false),
		"driver d returned OK to NodePublishVolume of volume h, but there is no block device at /t; if the driver runs in a container, it must mount /r with mountPropagation Bidirectional, and belay-node must see the mounts": NothingPublished("d", "h", "/t", "/r", true),
		"NodeExpand is not supported by the CSI driver d":                                                           ExpandNotSupported("d"),
		"mountVolume.NodeExpandVolume get PVC failed : away":                                                        ExpandClaimNotRead(errAway).Error(),
		"MountVolume.NodeExpandVolume failed to mark node expansion in progress: away":                              ExpandNotMarked(errAway).Error(),
		"mountVolume.NodeExpandVolume update pvc status failed: away":                                               ExpandNotRecorded(errAway).Error(),
		"failed to expand pvc with away":                                                                            ExpandCondition(errAway),
		"applyFSGroup failed for vol h: away":                                                                       OwnershipNotSet("h", errAway).Error(),
		"Setting volume ownership for p, processed 7 files.":                                                        OwnershipProgress("p", 7),
		`The file system of volume "pv" refused 7 changes for fsGroup 1; the pod gets it as it is. The first: away`: OwnershipRefused("pv", 7, 1, errAway),
		"Setting volume ownership for p is taking longer than expected, consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/#configure-volume-permission-and-ownership-change-policy-for-pods": OwnershipSlow("p"),
		"mount --rbind /r /r && mount --make-rshared /r":         ShareMounts("/r"),
		UnmountByHand + ", remove /r/x, then restart belay-node": UnmountUnreadable("/r/x"),
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// TestTextsOfPodVolumes names pod, claim and volume in each.
func TestTextsOfPodVolumes(t *testing.T) {
	for want, got := range map[string]string{
		"wait for the volumes of pod u: timed out\none\ntwo":                                      NotMounted("u", context.DeadlineExceeded, []string{"one", "two"}),
		"wait for the volumes of pod u: canceled\none":                                            NotMounted("u", context.Canceled, []string{"one"}),
		"wait for the volumes of pod u: away\none":                                                NotMounted("u", errAway, []string{"one"}),
		"wait for the unmount of the volumes of pod u: timed out; still published: pv (why), two": NotUnmounted("u", context.DeadlineExceeded, []string{StillPublished("pv", "why"), "two"}),
		"waits; last failure: away":                                                               LastFailure("waits", errAway),
		"waits: away":                                                                             ReasonWithCause("waits", errAway),
		" (ns/a, ns/b)":                                                                           OtherPods([]string{"ns/a", "ns/b"}),
		"pod u no longer needs the volume on this node":                                           PodGone("u"),
		`pod p is being deleted; volume "v" is no longer mounted for it`:                          PodBeingDeleted("p", "v"),
		"claim ns/c was recreated after the pod was bound":                                        ClaimRecreated("ns", "c"),
		"claim ns/c was not created for pod p (pod is not its owner)":                             ClaimOfOtherOwner("ns", "c", "p"),
		"claim ns/c: PVC is being deleted":                                                        ClaimBeingDeleted("ns", "c"),
		"claim ns/c is not bound":                                                                 ClaimWithoutVolume("ns", "c"),
		"volume pv is not bound to claim ns/c (the UIDs differ)":                                  VolumeNotBound("pv", "ns", "c"),
		"volume pv has volumeMode Block, its claim ns/c has Filesystem":                           ModesDiffer("pv", "Block", "ns", "c", "Filesystem"),
		"volume pv has volumeMode Block, but is specified in volumeMounts":                        BlockVolumeMounted("pv"),
		"volume pv has volumeMode Filesystem, but is specified in volumeDevices":                  FilesystemVolumeAsDevice("pv"),
		"driver: away": InvalidName("driver", errAway),
		`volume pv: handle "" is empty or contains control characters`:                                                                                   InvalidHandle("pv", ""),
		`volumes "a" and "b" would be published at the same path: an inline volume may not have the name of a PersistentVolume that its pod claims (pv)`: SamePath("a", "b", "pv"),
		`failed to construct SELinux label from context "x": away`:                                                                                       NoSELinuxLabel(`"x"`, errAway),
		"multiple SELinux labels found: a,b":                                                                                                             SeveralSELinuxLabels([]string{"a", "b"}),
		`volume "v" is a device and has no subPaths`:                                                                                                     DeviceHasNoSubPaths("v"),
		"node affinity of volume pv: away":                                                                                                               AffinityDiffers("pv", errAway),
		`volume mode "Ephemeral" not supported by driver d (only supports ["Persistent"])`:                                                               ModeNotSupported("Ephemeral", "d", []string{"Persistent"}),
		`volume mode "Ephemeral" not supported by driver d (no CSIDriver object)`:                                                                        NoCSIDriver("Ephemeral", "d"),
		"PersistentVolume pv of claim c is not a CSI volume (nfs): belay-node does not mount it, and leaves it to the program that runs the containers of the pod": NotCSIVolume("pv", "c", "nfs"),
		`Volume "v": away`: PodVolumeProblem("v", errAway),
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

package explain

import "fmt"

// The errors in the status of a VolumeAttachment. The first four, and those that begin like csi-attacher's, are csi-attacher's to the
// letter: users and tools look for them there.
const (
	BothSources      = "both InlineCSIVolumeSource and PersistentVolumeName specified in VA source"
	NoSource         = "neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source"
	InlineWithoutCSI = "inline volume spec contains nil CSI source"
	NotCSI           = "pv spec contained non-csi source that was not migrated"

	// WriteDropped reports a write that the API server accepted and did not store.
	WriteDropped = "the API server left out the finalizer or the node ID: an admission policy removes them"
)

// TranslateFailed reports why an in-tree volume has no CSI source.
func TranslateFailed(cause string) string { return "failed to translate in tree pv to CSI: " + cause }

// VolumeNotFound reports that the PersistentVolume does not exist, as a lister of client-go does.
func VolumeNotFound(name string) string { return fmt.Sprintf("persistentvolume %q not found", name) }

// VolumeMarkedForDeletion reports that nothing is attached for a PersistentVolume that is being deleted.
func VolumeMarkedForDeletion(name string) string {
	return fmt.Sprintf("PersistentVolume %q is marked for deletion", name)
}

// VolumeOfOtherDriver reports that the PersistentVolume is not of the driver that the VolumeAttachment names.
func VolumeOfOtherDriver(name, driver, attacher string) string {
	return fmt.Sprintf("PersistentVolume %q belongs to CSI driver %q, not to %q", name, driver, attacher)
}

// VolumeRecreated reports that the PersistentVolume is not the one that the VolumeAttachment was created for.
func VolumeRecreated(name, handle string) string {
	return fmt.Sprintf("PersistentVolume %q was recreated for another volume, %q", name, handle)
}

// VolumeRecreatedUnrecorded reports the same if the earlier volume is unknown, and how to end the wait.
func VolumeRecreatedUnrecorded(name, handle, finalizer string) string {
	return VolumeRecreated(name, handle) + ", and which volume this VolumeAttachment is for was not recorded: nothing is attached or detached for it. " +
		"Create a PersistentVolume with the handle of the earlier volume, or detach that volume at the storage and remove the finalizer " + finalizer
}

// CSINodeNotFound reports that the node has no CSINode, as a lister of client-go does.
func CSINodeNotFound(node string) string {
	return fmt.Sprintf("csinode.storage.k8s.io %q not found", node)
}

// CSINodeLacksDriver reports that the driver is not registered on the node.
func CSINodeLacksDriver(node, driver string) string {
	return fmt.Sprintf("CSINode %s does not contain driver %s", node, driver)
}

// SecretNotLoaded wraps why the Secret for a call could not be read.
func SecretNotLoaded(namespace, name string, err error) error {
	return fmt.Errorf("failed to load secret \"%s/%s\": %w", namespace, name, err)
}

// MayBeRestored is in the message about a VolumeAttachment that may be another cluster's.
const MayBeRestored = "the VolumeAttachment may be restored from a backup"

// Restored is why nothing is done for a VolumeAttachment that may be another cluster's.
func Restored(name, nodeID, by string) string {
	return fmt.Sprintf("no node has the recorded node ID %q, and %q wrote it, which is no attacher: %s, and another cluster may use the volume. "+
		"Nothing is published or unpublished for it. If that machine and its attachment are gone, delete it, and state that with: kubectl belay declare-gone va/%s --node-id ID --reason TEXT", nodeID, by, MayBeRestored, name)
}

// VolumeNotProtected wraps why the finalizer was not added to the PersistentVolume.
func VolumeNotProtected(err error) error {
	return fmt.Errorf("could not add PersistentVolume finalizer: %w", err)
}

// AttachmentNotSaved wraps why the finalizer and the records were not added to the VolumeAttachment.
func AttachmentNotSaved(err error) error {
	return fmt.Errorf("could not save VolumeAttachment: %w", err)
}

// NotMarkedDetached wraps why the finalizer was not removed after a detach.
func NotMarkedDetached(err error) error { return fmt.Errorf("could not mark as detached: %w", err) }

// PublishContextNotSaved wraps why the API server refuses what the driver returned.
func PublishContextNotSaved(err error) error {
	return fmt.Errorf("could not save the publish context: %w", err)
}

// NotFreed reports that the storage has the volume at a node that no VolumeAttachment is for, and why it is not unpublished there.
func NotFreed(nodeID, why string) string {
	return fmt.Sprintf("the driver lists the volume at node ID %q, which no VolumeAttachment is for, and it is not unpublished there: %s", nodeID, why)
}

// ListedInUse reports that a Node lists the volume in use.
func ListedInUse(node string) string { return fmt.Sprintf("Node %q lists it in use", node) }

// ListMayBeOld reports that a Node does not list the volume in use, and that its kubelet may not have reported since.
func ListMayBeOld(node string) string {
	return fmt.Sprintf("Node %q is not Ready, so its list of volumes in use may be old", node)
}

// NodeNotReadable reports which right is missing to find out whether a Node lists the volume in use.
func NodeNotReadable(node string) string {
	return fmt.Sprintf("the attacher may not read Node %q: its ServiceAccount needs the verb get on nodes (deploy/belay-attacher/rbac-nodes.yaml)", node)
}

// NodeNotRead reports that a Node could not be read.
func NodeNotRead(node string, err error) string {
	return fmt.Sprintf("reading Node %q failed: %v", node, err)
}

// NoNodeWithID reports that no Node is known to have a CSI node ID.
func NoNodeWithID(nodeID string) string {
	return fmt.Sprintf("no Node is known with node ID %q", nodeID)
}

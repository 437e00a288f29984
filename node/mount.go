package node

import (
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
)

// Mount is one volume of a pod, ready for its containers.
type Mount struct {
	// VolumeName is the name of the volume in pod.spec.volumes.
	VolumeName string
	// Path is where the volume is: a directory, or a block device if Block is set. Empty for a PersistentVolume that is not a CSI
	// volume.
	Path string
	// PersistentVolume is set for a claim that is bound to a PersistentVolume of another kind (hostPath, local, nfs ...). The agent
	// does not mount it: mount it, or fail the pod.
	PersistentVolume *corev1.PersistentVolume
	// Block: Path is a device and belongs into volumeDevices.
	Block bool
	// ReadOnly: the pod asked for the claim, or the inline volume, read-only. The driver was asked to publish it read-only; a
	// runtime that binds Path into a container should do so too.
	ReadOnly bool
	// SELinuxLabel is the label that the volume was mounted with, so that all its files have it and need, or allow, no relabeling.
	// If empty, on a node with SELinux the runtime has to label the files, as for any volume.
	SELinuxLabel string
	// SupplementalGroup is a group that all containers of the pod should have, besides those in its securityContext: the
	// PersistentVolume's annotation pv.beta.kubernetes.io/gid. Nil for none.
	SupplementalGroup *int64

	// The rest is for hosts that do not bind Path, but pass the volume to a virtual machine; see also [Mount.Source].

	// Driver and VolumeHandle identify the volume in CSI.
	Driver, VolumeHandle string
	// FSType is the file system that the PersistentVolume, or the inline volume, asks for; often empty. [Mount.Source] has the
	// actual one.
	FSType string
	// MountOptions are those of the PersistentVolume.
	MountOptions []string
	// VolumeContext has the volume's attributes, without the pod information that drivers get: it contains no tokens.
	VolumeContext map[string]string
	// PublishContext is what the driver's controller returned when it attached the volume, for the attachment by which it was
	// published. Nil if the volume needs no attachment, or was published before the agent was restarted: the attachment may have
	// been replaced since.
	PublishContext map[string]string
}

// Source is what is mounted at [Mount.Path], according to the kernel's mount table.
type Source struct {
	// Device is the block device with the file system, or the block volume itself; empty if there is none (NFS) or if only a part
	// of the device's file system is mounted, because the device gives access to all of it.
	Device string
	// FSType is the file system's type in the kernel; empty for a block volume.
	FSType string
}

// Source returns what is mounted for the pod. Do not mount a device whose file system is mounted a second time, for example in a
// virtual machine: only the driver may unmount it, and data would be lost.
func (m Mount) Source() (Source, error) {
	if m.Block {
		return Source{Device: m.Path}, nil
	}
	entries, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(m.Path))
	if err != nil {
		return Source{}, fmt.Errorf("look up what is mounted at %s: %w", m.Path, err)
	}
	if len(entries) == 0 {
		return Source{}, fmt.Errorf("look up what is mounted at %s: %w", m.Path, os.ErrNotExist)
	}
	top := entries[len(entries)-1]
	source := Source{FSType: top.FSType}
	if info, err := os.Stat(top.Source); err == nil && info.Mode().Type() == os.ModeDevice && top.Root == "/" {
		source.Device = top.Source
	}
	return source, nil
}

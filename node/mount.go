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
	// Path is a directory, or a block device if Block is set. It is empty for a PersistentVolume that is not a CSI volume.
	Path string
	// PersistentVolume is set for a claim bound to another type of volume (hostPath, local, nfs ...). The agent does not mount it: mount
	// it, or fail the pod.
	PersistentVolume *corev1.PersistentVolume
	// Block is set if Path is a device for volumeDevices.
	Block bool
	// ReadOnly is set if the pod asks for the claim or the inline volume read-only. The driver was asked for it; a container runtime should
	// also bind Path read-only.
	ReadOnly bool
	// SELinuxLabel is the label that the volume was mounted with. It applies to all files and cannot be changed. If it is empty, the
	// runtime labels the files on a node with SELinux, as for any volume.
	SELinuxLabel string
	// SupplementalGroup is an additional supplemental group for all containers of the pod, from the PersistentVolume's annotation
	// pv.beta.kubernetes.io/gid; nil for none.
	SupplementalGroup *int64

	// The rest is for callers that do not bind Path but pass the volume to a virtual machine; see also [Mount.Source].

	// Driver and VolumeHandle identify the volume in CSI.
	Driver, VolumeHandle string
	// FSType is the file system type in the PersistentVolume or the inline volume; often empty. [Mount.Source] has the actual one.
	FSType string
	// MountOptions are those of the PersistentVolume.
	MountOptions []string
	// VolumeContext has the volume's attributes, without pod information and tokens.
	VolumeContext map[string]string
	// PublishContext is from ControllerPublishVolume of the attachment with which the volume was published. It is nil if the driver needs
	// no attachment, or if the volume was published before the agent was restarted, as the attachment may have changed since.
	PublishContext map[string]string
}

// Source is what is mounted at [Mount.Path], according to the kernel's mount table.
type Source struct {
	// Device is the block device with the file system, or the block volume itself. It is empty if there is none (NFS), or if only a part of
	// the device's file system is mounted, because the device would give access to all of it.
	Device string
	// FSType is the actual file system type; empty for a block volume.
	FSType string
}

// Source looks up what is mounted for the pod. Do not mount a device a second time while its file system is mounted, such as in a virtual
// machine: that corrupts data, and only the driver may unmount it.
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

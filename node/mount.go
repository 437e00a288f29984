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
	// Path is where the volume is: a directory, or a block device if Block is set. Empty for a PersistentVolume that is not
	// a CSI volume.
	Path string
	// PersistentVolume is set for a claim that is bound to one of another kind (hostPath, local, nfs ...), and says all about
	// it. The agent does not mount it: mount it, or fail the pod.
	PersistentVolume *corev1.PersistentVolume
	// Block says that Path is a device and belongs into volumeDevices.
	Block bool
	// ReadOnly says that the pod asked for the claim, or the inline volume, read-only.
	// The driver was told so; a runtime that binds Path into a container should bind it
	// read-only too.
	ReadOnly bool
	// SELinuxLabel is the label that the volume was mounted with, so that all its files have
	// it and nobody need, or can, change theirs. Empty: on a node with SELinux the runtime
	// has to label the files, as for any volume.
	SELinuxLabel string
	// SupplementalGroup is a group that all containers of the pod are to have, besides those in its securityContext: the
	// PersistentVolume's annotation pv.beta.kubernetes.io/gid. Nil for none.
	SupplementalGroup *int64

	// The rest is for hosts that do not bind Path, but give the volume to a virtual machine; see also [Mount.Source].

	// Driver and VolumeHandle are the volume's name in CSI.
	Driver, VolumeHandle string
	// FSType is the file system that the PersistentVolume, or the inline volume, asks for; often empty. What is
	// mounted is in [Mount.Source].
	FSType string
	// MountOptions are those of the PersistentVolume.
	MountOptions []string
	// VolumeContext is the volume's attributes, without what drivers are told of pods: there are no tokens in it.
	VolumeContext map[string]string
	// PublishContext is what the driver's controller said when it attached the volume: that of the attachment by which
	// it was published. Nil if the volume needs no attachment, or was published before the agent was restarted: the
	// attachment may be another one by now, and what is not known to be right is left out.
	PublishContext map[string]string
}

// Source is what is mounted at [Mount.Path], by the kernel's mount table.
type Source struct {
	// Device is the block device with the file system, or the block volume itself; empty if there is none (NFS) or
	// if only a part of the device's file system is mounted: whoever has the device has all of it.
	Device string
	// FSType is the file system's type as the kernel has it; empty for a block volume.
	FSType string
}

// Source looks up what is mounted for the pod. A device that has a file system mounted must not be mounted a
// second time, in a virtual machine for example: unmounting it is the driver's business, and data would be lost.
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

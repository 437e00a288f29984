package attacher

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/publication"
)

// The texts of these errors are csi-attacher's: they end in the attachment's
// status, where people and tools look for them.
var (
	errBothSources   = errors.New("both InlineCSIVolumeSource and PersistentVolumeName specified in VA source")
	errNoSource      = errors.New("neither InlineCSIVolumeSource nor PersistentVolumeName specified in VA source")
	errInlineWithout = errors.New("inline volume spec contains nil CSI source")
	errNotCSI        = errors.New("pv spec contained non-csi source that was not migrated")
)

func errTranslate(err error) error {
	return fmt.Errorf("failed to translate in tree pv to CSI: %w", err)
}

// source is the volume of an attachment.
type source struct {
	pv       *corev1.PersistentVolume // nil for an inline volume
	spec     *corev1.PersistentVolumeSpec
	migrated bool
}

func (s source) csi() *corev1.CSIPersistentVolumeSource { return s.spec.CSI }

// sourceOf finds the volume of an attachment.
func (o *objects) sourceOf(va *storagev1.VolumeAttachment) (source, error) {
	name, inline := va.Spec.Source.PersistentVolumeName, va.Spec.Source.InlineVolumeSpec
	switch {
	case name != nil && inline != nil:
		return source{}, errBothSources
	case inline != nil:
		if inline.CSI == nil {
			return source{}, errInlineWithout
		}
		// Inline volumes come translated from the controller; all were in-tree.
		return source{spec: inline, migrated: true}, nil
	case name == nil:
		return source{}, errNoSource
	}
	pv, ok := o.volumes.get(*name)
	if !ok {
		// Another PersistentVolume of the same handle stands in: the name of the
		// attachment proves the handle.
		if stand := o.volumeByAttachmentName(va); stand != nil {
			return o.sourceOfVolume(stand)
		}
		return source{}, fmt.Errorf("persistentvolume %q not found", *name)
	}
	return o.sourceOfVolume(pv)
}

func (o *objects) sourceOfVolume(pv *corev1.PersistentVolume) (source, error) {
	spec, migrated, err := o.csiSpec(pv)
	if err != nil {
		return source{}, err
	}
	if spec.CSI.Driver != o.driver {
		return source{}, fmt.Errorf("PersistentVolume %q belongs to CSI driver %q, not to %q", pv.Name, spec.CSI.Driver, o.driver)
	}
	return source{pv: pv, spec: spec, migrated: migrated}, nil
}

// volumeByAttachmentName finds a PersistentVolume whose handle, with driver and
// node, makes the attachment's name. It looks at every handle, and is only asked
// for the rare attachment whose own PersistentVolume is gone.
func (o *objects) volumeByAttachmentName(va *storagev1.VolumeAttachment) *corev1.PersistentVolume {
	for _, item := range o.volumeInformer.GetStore().List() {
		handles, err := o.indexVolumes(item)
		if err != nil || len(handles) == 0 || kube.AttachmentName(handles[0], o.driver, va.Spec.NodeName) != va.Name {
			continue
		}
		if volumes := o.volumes.byIndex(indexHandle, handles[0]); len(volumes) > 0 {
			return volumes[0]
		}
	}
	return nil
}

// exclusive looks at everything that has a handle: two PersistentVolumes may
// share one, and the volume is exclusive if any of them says so, or if nothing is
// known of it.
func (o *objects) exclusive(handle string) bool {
	shared := false
	for _, pv := range o.volumes.byIndex(indexHandle, handle) {
		if !attachment.AllowsSeveralNodes(pv.Spec.AccessModes) {
			return true
		}
		shared = true
	}
	for _, va := range o.attachments.byIndex(indexInline, handle) {
		if !attachment.AllowsSeveralNodes(va.Spec.Source.InlineVolumeSpec.AccessModes) {
			return true
		}
		shared = true
	}
	return !shared
}

// keyOf is the key under which an attachment is decided about.
func (o *objects) keyOf(va *storagev1.VolumeAttachment) publication.Key {
	from, err := o.sourceOf(va)
	if err != nil {
		return publication.Key{Attachment: va.Name}
	}
	return o.keyOfVolume(from.csi().VolumeHandle, va.Spec.NodeName)
}

func (o *objects) keyOfVolume(handle, node string) publication.Key {
	if o.exclusive(handle) {
		return publication.Key{Volume: handle}
	}
	return publication.Key{Volume: handle, Node: node}
}

// publishRequest fills in everything but the secrets.
func (s source) publishRequest(nodeID, defaultFSType string) csi.PublishRequest {
	from := s.csi()
	request := csi.PublishRequest{
		VolumeHandle:  from.VolumeHandle,
		NodeID:        nodeID,
		AccessModes:   s.spec.AccessModes,
		ReadOnly:      from.ReadOnly,
		VolumeContext: from.VolumeAttributes,
		Migrated:      s.migrated,
	}
	if s.spec.VolumeMode != nil && *s.spec.VolumeMode == corev1.PersistentVolumeBlock {
		request.Block = true
		return request
	}
	request.MountFlags = s.spec.MountOptions
	request.FSType = from.FSType
	if request.FSType == "" {
		request.FSType = defaultFSType
	}
	return request
}

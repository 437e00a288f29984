package attacher

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"belay.dev/belay/internal/attachment"
	"belay.dev/belay/internal/csi"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/planted"
)

// Why the volume of an attachment is not known, for its status.
var (
	errBothSources   = errors.New(explain.BothSources)
	errNoSource      = errors.New(explain.NoSource)
	errInlineWithout = errors.New(explain.InlineWithoutCSI)
	errNotCSI        = errors.New(explain.NotCSI)
)

// identity identifies the volume of a call. It is recorded on the attachment before the first call, and only that
// volume is unpublished, even if the PersistentVolume is recreated for another volume.
type identity struct {
	handle   string
	secret   *corev1.SecretReference // of the PersistentVolume; nil for none
	migrated bool
}

// source is the volume of an attachment.
type source struct {
	identity
	pv   *corev1.PersistentVolume     // nil for an inline volume or if there is none with this handle
	spec *corev1.PersistentVolumeSpec // nil if unknown: the volume can only be unpublished
	// missing is why spec is nil.
	missing error
}

// unprotected reports whether the volume has a PersistentVolume without our finalizer.
func (s source) unprotected(finalizer string) bool {
	return s.pv != nil && !slices.Contains(s.pv.Finalizers, finalizer)
}

// sourceOf returns the volume of an attachment: the recorded one, or else that of its PersistentVolume if the name of
// the attachment, a digest of handle, driver and node, matches. A PersistentVolume may be recreated under its name for
// another volume.
func (o *objects) sourceOf(va *storagev1.VolumeAttachment) (source, error) {
	name, inline := va.Spec.Source.PersistentVolumeName, va.Spec.Source.InlineVolumeSpec
	switch {
	case name != nil && inline != nil:
		return source{}, errBothSources
	case inline != nil:
		if inline.CSI == nil {
			return source{}, errInlineWithout
		}
		// Inline volumes are migrated in-tree volumes, which the controller has translated.
		return sourceOfSpec(inline, true), nil
	case name == nil:
		return source{}, errNoSource
	}
	return o.sourceNamed(va, *name)
}

// sourceNamed returns the volume of an attachment that refers to a PersistentVolume.
func (o *objects) sourceNamed(va *storagev1.VolumeAttachment, name string) (source, error) {
	named, err := o.sourceOfName(name)
	recorded := recordedHandle(va)
	handle := recorded
	if handle == "" {
		handle = o.orphans.handle(va.Name)
	}
	if err == nil {
		if planted.Recreated || handle == named.handle || handle == "" && o.mayBelongTo(va, named.handle) {
			return named, nil
		}
		err = o.recreated(name, named.handle, handle != "")
	}
	if handle == "" {
		return source{}, err
	}
	for _, pv := range o.volumes.byIndex(indexHandle, handle) {
		if other, err := o.sourceOfVolume(pv); err == nil {
			return other, nil // another PersistentVolume of the same volume
		}
	}
	if recorded == "" {
		return source{}, err
	}
	return source{identity: identity{handle: handle, secret: recordedSecret(va)}, missing: err}, nil
}

// recreated returns the error for a PersistentVolume that was recreated for another volume. If the earlier volume is
// unknown, the error states how to end the wait.
func (o *objects) recreated(name, handle string, known bool) error {
	if known {
		return errors.New(explain.VolumeRecreated(name, handle))
	}
	return errors.New(explain.VolumeRecreatedUnrecorded(name, handle, kube.AttacherFinalizer(o.driver)))
}

// sourceOfName returns the current volume of a PersistentVolume.
func (o *objects) sourceOfName(name string) (source, error) {
	pv, ok := o.volumes.Get(name)
	if !ok {
		return source{}, errors.New(explain.VolumeNotFound(name))
	}
	return o.sourceOfVolume(pv)
}

func (o *objects) sourceOfVolume(pv *corev1.PersistentVolume) (source, error) {
	spec, migrated, err := csiSpec(pv)
	if err != nil {
		return source{}, err
	}
	if spec.CSI.Driver != o.driver {
		return source{}, errors.New(explain.VolumeOfOtherDriver(pv.Name, spec.CSI.Driver, o.driver))
	}
	from := sourceOfSpec(spec, migrated)
	from.pv = pv
	return from, nil
}

func sourceOfSpec(spec *corev1.PersistentVolumeSpec, migrated bool) source {
	return source{
		identity: identity{handle: spec.CSI.VolumeHandle, secret: spec.CSI.ControllerPublishSecretRef, migrated: migrated}, spec: spec,
	}
}

// mayBelongTo reports whether an attachment may be one of the volume: its name matches, or is not a computed name.
func (o *objects) mayBelongTo(va *storagev1.VolumeAttachment, handle string) bool {
	return kube.IsAttachmentNameOf(va.Name, handle, o.driver, va.Spec.NodeName) || !kube.IsAttachmentName(va.Name)
}

// identityAnnotations returns the annotations that record the volume before the first call. An inline volume is part of
// the attachment.
func (s source) identityAnnotations(secret *corev1.SecretReference) map[string]any {
	if !s.mustRecord() {
		return nil
	}
	record := map[string]any{kube.PublishedHandleAnnotation: s.handle, kube.PublishSecretAnnotation: nil}
	if secret != nil {
		record[kube.PublishSecretAnnotation] = secret.Namespace + "/" + secret.Name
	}
	return record
}

// mustRecord reports whether the handle has to be recorded on the attachment. A handle that is too long for an
// annotation is recognized by the attachment's name alone.
func (s source) mustRecord() bool { return s.pv != nil && len(s.handle) <= kube.MaxRecordedHandle }

// exclusive reports whether a volume may be attached to one node only. One of which that is unknown counts as exclusive.
func (o *objects) exclusive(handle string) bool {
	return kube.Sharing(o.volumes.byIndex(indexHandle, handle), slices.Values(o.attachments.byIndex(indexInline, handle))) != attachment.Yes
}

// publishRequest returns the request without secrets.
func (s source) publishRequest(nodeID, defaultFSType string) csi.PublishRequest {
	from := s.spec.CSI
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

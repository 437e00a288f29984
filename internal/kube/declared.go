package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// DeclarationManager is the field manager of "kubectl belay declare-gone". A declaration that any other client wrote or edited counts for nothing,
// so that a restored one does not count either.
const DeclarationManager = "kubectl-belay"

// declarationAtMost is for how long a declaration counts, and declarationAhead how far the clock of the person's machine may be ahead.
const (
	declarationAtMost = 24 * time.Hour
	declarationAhead  = 5 * time.Minute
)

// Declaration is a person's word that a machine, and the attachment of a volume to it at the storage, are gone. It is the value of
// DeclaredGoneAnnotation.
type Declaration struct {
	// UID and ResourceVersion are those of the VolumeAttachment that the person looked at.
	UID             types.UID `json:"uid"`
	ResourceVersion string    `json:"resourceVersion"`
	NodeID          string    `json:"nodeID"` // the recorded one
	By              string    `json:"by"`
	Reason          string    `json:"reason"`
	At              time.Time `json:"at"`
}

// DeclaredGone returns the declaration on a VolumeAttachment, nil without one. An error is why one that is there counts for nothing.
func DeclaredGone(va *storagev1.VolumeAttachment, now time.Time) (*Declaration, error) {
	text, ok := va.Annotations[DeclaredGoneAnnotation]
	if !ok {
		return nil, nil
	}
	var d Declaration
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		return nil, fmt.Errorf("it is malformed: %w", err)
	}
	if decoder.More() {
		return nil, errors.New("it is malformed: more follows")
	}
	switch {
	case d.UID == "" || d.UID != va.UID:
		return nil, errors.New("it is for another VolumeAttachment")
	case d.NodeID == "" || d.NodeID != va.Annotations[NodeIDAnnotation]:
		return nil, fmt.Errorf("it is for node ID %q, and %q is recorded", d.NodeID, va.Annotations[NodeIDAnnotation])
	case d.By == "" || d.Reason == "" || d.ResourceVersion == "":
		return nil, errors.New("it lacks who made it, why, or of which version")
	case now.Sub(d.At) > declarationAtMost:
		return nil, fmt.Errorf("it is of %s, more than %v old", d.At.UTC().Format(time.RFC3339), declarationAtMost)
	case d.At.Sub(now) > declarationAhead:
		return nil, fmt.Errorf("it is of %s, which is in the future", d.At.UTC().Format(time.RFC3339))
	}
	return &d, nil
}

// AnnotationManagers returns the field managers that the API server names as the owners of an annotation, sorted.
func AnnotationManagers(m metav1.ObjectMeta, annotation string) (managers []string) {
	field := `"f:` + annotation + `":`
	for i := range m.ManagedFields {
		if fields := m.ManagedFields[i].FieldsV1; fields != nil && strings.Contains(fields.GetRawString(), field) {
			managers = append(managers, m.ManagedFields[i].Manager)
		}
	}
	slices.Sort(managers)
	return slices.Compact(managers)
}

// IsDeclaration reports whether only the command wrote the declaration on an object that the API server returned.
func IsDeclaration(m metav1.ObjectMeta) bool {
	return slices.Equal(AnnotationManagers(m, DeclaredGoneAnnotation), []string{DeclarationManager})
}

package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/nodeagent/worker"
)

// readClaim reads the claim of a volume. It rejects another claim of the same name.
func (g *growth) readClaim(ctx context.Context, w *volumeToMount, version string) (*corev1.PersistentVolumeClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	claim, err := g.client.CoreV1().PersistentVolumeClaims(w.pod.Namespace).Get(ctx, w.claim.name, metav1.GetOptions{ResourceVersion: version})
	if err != nil {
		return nil, fmt.Errorf("read claim %s/%s: %w", w.pod.Namespace, w.claim.name, err)
	}
	if claim.UID != w.claim.uid {
		return nil, errors.New(explain.ClaimRecreated(w.pod.Namespace, w.claim.name))
	}
	return claim, nil
}

// patchClaim changes the status of a claim. The patch carries the UID and, if bound is set, the resourceVersion that was read, so that it
// fails after another write.
func (g *growth) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, bound bool, change func(*corev1.PersistentVolumeClaimStatus)) (*corev1.PersistentVolumeClaim, error) {
	changed := claim.DeepCopy()
	change(&changed.Status)
	if equality.Semantic.DeepEqual(claim.Status, changed.Status) {
		return claim, nil
	}
	before := claim.DeepCopy()
	before.UID, before.ResourceVersion = "", ""
	if !bound {
		changed.ResourceVersion = ""
	}
	from, err := json.Marshal(before)
	if err != nil {
		return claim, fmt.Errorf("encode claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	to, err := json.Marshal(changed)
	if err != nil {
		return claim, fmt.Errorf("encode claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(from, to, before)
	if err != nil {
		return claim, fmt.Errorf("compare claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, worker.APITimeout)
	defer cancel()
	after, err := g.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return claim, fmt.Errorf("write the status of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return after, nil
}

func setResizeStatus(status *corev1.PersistentVolumeClaimStatus, to corev1.ClaimResourceStatus) {
	if status.AllocatedResourceStatuses == nil {
		status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	status.AllocatedResourceStatuses[corev1.ResourceStorage] = to
}

// mergeConditions adds the condition of a failed expansion, or removes all conditions of the expansion if failure is nil.
func mergeConditions(status *corev1.PersistentVolumeClaimStatus, failure *corev1.PersistentVolumeClaimCondition) {
	var kept []corev1.PersistentVolumeClaimCondition
	for _, c := range status.Conditions {
		switch c.Type {
		case corev1.PersistentVolumeClaimNodeResizeError:
			if failure != nil && c.Status == failure.Status {
				failure.LastTransitionTime = c.LastTransitionTime
			}
		case corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimControllerResizeError:
			if failure != nil {
				kept = append(kept, c)
			}
		default:
			kept = append(kept, c)
		}
	}
	if failure != nil {
		kept = append(kept, *failure)
	}
	status.Conditions = kept
}
